package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"strconv"
)

// mention is a requirement, or the first and last of several, in a text.
var mention = regexp.MustCompile(`\bR(\d{1,2})(?:[-–]R(\d{1,2}))?\b`)

// readComments notes a file with the requirements that its comments name.
func (f *findings) readComments(file string, syntax *ast.File) error {
	for _, group := range syntax.Comments {
		for _, m := range mention.FindAllStringSubmatch(group.Text(), -1) {
			if err := f.addRange(m[1], m[2], file); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

// addRange notes a file with first and all up to last, which may be empty. Both
// are of one or two digits.
func (f *findings) addRange(first, last, file string) error {
	from, _ := strconv.Atoi(first)
	to, _ := strconv.Atoi(last)
	for number := from; number <= max(from, to); number++ {
		if err := f.addCode(number, file); err != nil {
			return err
		}
	}
	return nil
}
