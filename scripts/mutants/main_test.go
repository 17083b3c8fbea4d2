package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every patch still applies, and the tests that it names exist.
func TestPatchesAreCurrent(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	mutants, err := load(root)
	if err != nil || len(mutants) == 0 {
		t.Fatalf("%d patches, %v", len(mutants), err)
	}
	for _, m := range mutants {
		if _, err := m.apply(root, t.TempDir()); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		for _, of := range m.tests {
			dir := filepath.Join(root, strings.TrimPrefix(of.pkg, "ipoibd"))
			text := ""
			files, _ := filepath.Glob(dir + "/*_test.go")
			for _, file := range files {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text += string(content)
			}
			function, sub, _ := strings.Cut(of.name, "/")
			_, err := os.Stat(filepath.Join(dir, "testdata", strings.Replace(sub, "/", "-", 1)+".txt"))
			// The names of subtests have underscores for spaces.
			isSub := sub == "" || err == nil || strings.Contains(strings.ReplaceAll(text, " ", "_"), `"`+sub+`"`)
			if !strings.Contains(text, "func "+function+"(") || !isSub {
				t.Errorf("%s: there is no %s in %s", m.name, of.name, of.pkg)
			}
		}
	}
}

// project writes a module with a function, its tests, and patches, and returns its
// folder.
func project(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for file, text := range files {
		file = filepath.Join(root, file)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// patch is one that replaces line 4 of x.go.
func patch(tests, was, is string) string {
	return "Breaks: F.\n" + tests + "\n--- a/x.go\n+++ b/x.go\n@@ -3,3 +3,3 @@\n func F() int {\n-\t" + was + "\n+\t" + is + "\n }\n"
}

// Each verdict has its mutant, and the tree stays as it was.
func TestVerdicts(t *testing.T) {
	const source = "package m\n\nfunc F() int {\n\treturn 1\n}\n"
	root := project(t, map[string]string{
		"go.mod": "module m\n\ngo 1.26\n",
		"x.go":   source,
		"x_test.go": `package m

import "testing"

func TestR01F(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		if F() != 1 {
			t.Error(F())
		}
	})
}

func TestR01Weak(t *testing.T) { _ = F() }

func TestR01Skips(t *testing.T) {
	if F() != 1 {
		t.Skip()
	}
}

func TestR01Fails(t *testing.T) { t.Error() }
`,
		patches + "/R01-killed.patch":   patch("Test: m TestR01F/one\n", "return 1", "return 3"),
		patches + "/R01-weak.patch":     patch("Test: m TestR01F\nTest: m TestR01Weak\n", "return 1", "return 3"),
		patches + "/R01-skips.patch":    patch("Test: m TestR01Skips\n", "return 1", "return 3"),
		patches + "/R01-missing.patch":  patch("Test: m TestR01Missing\n", "return 1", "return 3"),
		patches + "/R01-fails.patch":    patch("Test: m TestR01Fails\n", "return 1", "return 3"),
		patches + "/R01-no-go.patch":    patch("Test: m TestR01F\n", "return 1", "return"),
		patches + "/R01-old.patch":      patch("Test: m TestR01F\n", "return 7", "return 3"),
		patches + "/R01-no-file.patch":  strings.ReplaceAll(patch("Test: m TestR01F\n", "return 1", "return 3"), "x.go", "y.go"),
		patches + "/not-a-patch.patch~": "",
	})
	t.Setenv("TMPDIR", t.TempDir())
	var out strings.Builder
	if err := run(&out, root, ""); !errors.Is(err, errNotKilled) {
		t.Error(err)
	}
	for name, want := range map[string]verdict{
		"killed": killed, "weak": survived, "skips": unclear, "missing": unclear, "fails": unclear, "no-go": unclear, "old": stale, "no-file": stale,
	} {
		v, _, _ := strings.Cut(line(out.String(), "R01-"+name+":"), " ")
		if v != string(want) {
			t.Errorf("%s: %s, want %s", name, v, want)
		}
	}
	if !strings.HasSuffix(out.String(), "\n1 of 8 mutants killed\n") || t.Failed() {
		t.Errorf("printed:\n%s", out.String())
	}
	if err := run(&out, root, "^R01-killed$"); err != nil {
		t.Errorf("the one that is killed: %v", err)
	}
	if err := run(&out, root, "R02"); !errors.Is(err, errNoPatch) {
		t.Errorf("no patch: %v", err)
	}
	if text, err := os.ReadFile(filepath.Join(root, "x.go")); err != nil || string(text) != source {
		t.Errorf("the tree was changed: %v\n%s", err, text)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// line is the line of text that has a part.
func line(text, part string) string {
	for line := range strings.Lines(text) {
		if strings.Contains(line, part) {
			return line
		}
	}
	return ""
}

func TestBadHeads(t *testing.T) {
	diff := patch("", "return 1", "return 3")[len("Breaks: F.\n"):]
	for what, text := range map[string]string{
		"what it breaks is missing": "Test: m TestR06A\n" + diff,
		"no test":                   "Breaks: it.\n" + diff,
		"a test without package":    "Breaks: it.\nTest: TestR06A\n" + diff,
		"a test with flags":         "Breaks: it.\nTest: m TestR06A -v\n" + diff,
		"a test of something else":  "Breaks: it.\nTest: m TestR07A\n" + diff,
		"text before the diff":      "Breaks: it.\nTest: m TestR06A\nand more\n" + diff,
		"nothing":                   "",
	} {
		if m, err := load(project(t, map[string]string{patches + "/R06-x.patch": text})); !errors.Is(err, errHead) {
			t.Errorf("%s: %+v, %v", what, m, err)
		}
	}
}
