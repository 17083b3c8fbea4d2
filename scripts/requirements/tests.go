package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

var (
	testName   = regexp.MustCompile(`^Test((?:R\d+)+)`)
	inName     = regexp.MustCompile(`\d+`)
	subtest    = regexp.MustCompile(`^R(\d+)/`)
	transcript = regexp.MustCompile(`^R(\d+)-(.+)\.txt$`)
	verb       = regexp.MustCompile(`%[^a-zA-Z%]*[a-zA-Z]`) // of fmt
)

// readTests notes what the names of a file's tests, of its subtests and of the
// transcripts that it plays say that they show.
func (f *findings) readTests(fsys fs.FS, file string, syntax *ast.File) (err error) {
	ast.Inspect(syntax, func(n ast.Node) bool {
		if err != nil {
			return false
		}
		switch n := n.(type) {
		case *ast.FuncDecl:
			err = f.addFunction(file, n)
		case *ast.BasicLit:
			err = f.addLiteral(fsys, file, n)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

func (f *findings) addFunction(file string, fn *ast.FuncDecl) error {
	m := testName.FindStringSubmatch(fn.Name.Name)
	if fn.Recv != nil || m == nil {
		return nil
	}
	for _, digits := range inName.FindAllString(m[1], -1) {
		if err := f.addNumbered(digits, place{file, fn.Name.Name}); err != nil {
			return err
		}
	}
	return nil
}

// addLiteral notes a string that names a subtest or transcripts.
func (f *findings) addLiteral(fsys fs.FS, file string, lit *ast.BasicLit) error {
	if lit.Kind != token.STRING {
		return nil
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return err
	}
	if m := subtest.FindStringSubmatch(text); m != nil {
		return f.addNumbered(m[1], place{file, subtestName(text)})
	}
	if strings.HasPrefix(text, "testdata/") {
		return f.addTranscripts(fsys, path.Join(path.Dir(file), text))
	}
	return nil
}

// subtestName is a name as testing writes it, an ellipsis for what is not known
// before it runs.
func subtestName(literal string) string {
	name := verb.ReplaceAllString(strings.ReplaceAll(literal, " ", "_"), "…")
	if strings.HasSuffix(name, "/") {
		name += "…"
	}
	return name
}

// addTranscripts notes the transcripts that a pattern matches. A string that is
// no pattern is the path of something else.
func (f *findings) addTranscripts(fsys fs.FS, pattern string) error {
	files, err := fs.Glob(fsys, pattern)
	if err != nil {
		return nil
	}
	for _, file := range files {
		m := transcript.FindStringSubmatch(path.Base(file))
		if m == nil {
			continue
		}
		if err := f.addNumbered(m[1], place{file, "R" + m[1] + "/" + m[2]}); err != nil {
			return err
		}
	}
	return nil
}

func (f *findings) addNumbered(digits string, test place) error {
	number, err := strconv.Atoi(digits)
	if err != nil {
		return fmt.Errorf("%w: R%s", errUnknown, digits)
	}
	return f.addTest(number, test)
}
