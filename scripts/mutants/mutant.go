package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// patches is where the patches are, from the root of the module.
const patches = "scripts/mutants/testdata"

// Heads of lines before the diff.
const (
	breaksHead = "Breaks: "
	testHead   = "Test: "
)

var errBadPatch = errors.New("not a patch with a head")

// patchName is that of a patch's file: its requirement, and what it does.
var patchName = regexp.MustCompile(`^R(\d{2})-[a-z0-9-]+$`)

// mutant is a patch that breaks what a requirement asks for.
type mutant struct {
	name        string // of its file, without the extension
	requirement int
	breaks      string // for people
	tests       []test // that must fail
}

// test is one test, or a subtest as testing names it.
type test struct {
	pkg, name string
}

// load reads the patches of a tree, in the order of their names.
func load(tree fs.FS) (all []mutant, err error) {
	files, err := fs.Glob(tree, patches+"/*.patch")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := fs.ReadFile(tree, file)
		if err != nil {
			return nil, err
		}
		m, err := parse(strings.TrimSuffix(path.Base(file), ".patch"), string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, m)
	}
	return all, nil
}

// file is where the patch is, from the root of the module.
func (m mutant) file() string { return path.Join(patches, m.name+".patch") }

// parse reads the head of a patch. Its diff is git's to check.
func parse(name, text string) (mutant, error) {
	number := patchName.FindStringSubmatch(name)
	if number == nil {
		return mutant{}, fmt.Errorf("%w: its name has no requirement", errBadPatch)
	}
	m := mutant{name: name}
	m.requirement, _ = strconv.Atoi(number[1]) // two digits
	head, _, _ := strings.Cut(text, "\n--- ")
	for line := range strings.Lines(head) {
		if err := m.readLine(strings.TrimSpace(line)); err != nil {
			return mutant{}, err
		}
	}
	if m.breaks == "" || len(m.tests) == 0 {
		return mutant{}, fmt.Errorf("%w: it does not say what it breaks, or who notices", errBadPatch)
	}
	return m, nil
}

func (m *mutant) readLine(line string) error {
	if breaks, ok := strings.CutPrefix(line, breaksHead); ok {
		m.breaks = strings.TrimSuffix(breaks, ".")
		return nil
	}
	if of, ok := strings.CutPrefix(line, testHead); ok {
		return m.addTest(of)
	}
	if line != "" {
		return fmt.Errorf("%w: %q before the diff", errBadPatch, line)
	}
	return nil
}

// addTest notes a test, given as package and name.
func (m *mutant) addTest(of string) error {
	pkg, name, ok := strings.Cut(of, " ")
	switch {
	case !ok || strings.ContainsRune(name, ' '):
		return fmt.Errorf("%w: test %q is no package and name", errBadPatch, of)
	case !strings.Contains(name, fmt.Sprintf("R%02d", m.requirement)):
		return fmt.Errorf("%w: test %s does not show R%d", errBadPatch, name, m.requirement)
	}
	m.tests = append(m.tests, test{pkg, name})
	return nil
}

// pattern is what -run takes for the test and what it is a part of, alone.
func (t test) pattern() string {
	return "^" + strings.ReplaceAll(regexp.QuoteMeta(t.name), "/", "$/^") + "$"
}
