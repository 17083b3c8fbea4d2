package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const root = "../.."

// enough is how many requirements must have a mutant.
const enough = 10

// Every patch still applies, and the tests that it names exist.
func TestPatchesAreCurrent(t *testing.T) {
	all, err := load(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	shown := map[int]bool{}
	for _, m := range all {
		shown[m.requirement] = true
		if err := apply(t.Context(), root, m.file(), "--check"); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for _, of := range m.tests {
			if !exists(t, of) {
				t.Errorf("%s: there is no %s in %s", m.name, of.name, of.pkg)
			}
		}
	}
	if len(shown) < enough {
		t.Errorf("%d requirements have a mutant, want %d", len(shown), enough)
	}
}

// exists looks for a test function, and for a subtest's name as a string or as a
// transcript, where its package is.
func exists(t *testing.T, of test) bool {
	t.Helper()
	dir := filepath.Join(root, strings.TrimPrefix(of.pkg, "ipoibd"))
	function, sub, _ := strings.Cut(of.name, "/")
	text := testFiles(t, dir)
	_, err := os.Stat(filepath.Join(dir, "testdata", strings.Replace(sub, "/", "-", 1)+".txt"))
	return strings.Contains(text, "func_"+function+"(") &&
		(sub == "" || err == nil || strings.Contains(text, `"`+sub+`"`))
}

// testFiles is the text of a package's tests, with underscores for spaces as in
// the names of subtests.
func testFiles(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(dir + "/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return strings.ReplaceAll(all.String(), " ", "_")
}
