package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// project is a module with a function, its tests, and patches of all kinds.
var project = map[string]string{
	"go.mod":     "module m\n\ngo 1.26\n",
	"x/x.go":     "package x\n\nfunc F() int {\n\treturn 1\n}\n\nfunc G() int {\n\treturn 2\n}\n",
	".gitignore": "ignored\n",
	"ignored":    "",
	"x/x_test.go": `package x

import "testing"

func TestR01F(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		if F() != 1 {
			t.Error(F())
		}
	})
}

func TestR02G(t *testing.T) { _ = G() }
`,
	patches + "/R01-f.patch":         "Breaks: F.\nTest: m/x TestR01F/one\n" + patch("return 1", "return 3", 3),
	patches + "/R01-no-go.patch":     "Breaks: F.\nTest: m/x TestR01F\n" + patch("return 1", "return", 3),
	patches + "/R01-old.patch":       "Breaks: F.\nTest: m/x TestR01F\n" + patch("return 7", "return 3", 3),
	patches + "/R02-unnoticed.patch": "Breaks: G.\nTest: m/x TestR02G\n" + patch("return 2", "return 3", 7),
}

// patch is a diff of x/x.go that replaces one line, the one after a line of its
// function's head.
func patch(old, now string, head int) string {
	name := map[int]string{3: "F", 7: "G"}[head]
	return strings.NewReplacer("HEAD", string(rune('0'+head)), "NAME", name, "OLD", old, "NEW", now).Replace(`
--- a/x/x.go
+++ b/x/x.go
@@ -HEAD,3 +HEAD,3 @@
 func NAME() int {
-	OLD
+	NEW
 }
`)
}

// inProject runs the rest of the test in a git tree with the project's files.
func inProject(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	for file, text := range project {
		write(t, file, text)
	}
	for _, args := range [][]string{{"init", "-q"}, {"add", "."}} {
		if _, err := git(t.Context(), ".", args...); err != nil {
			t.Fatal(err)
		}
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// All kinds of patches, in a small module; its tree is left as it was.
func TestRun(t *testing.T) {
	inProject(t)
	t.Setenv("TMPDIR", t.TempDir())
	var out, log strings.Builder
	if err := run(t.Context(), &out, &log, "", 2); !errors.Is(err, errNotKilled) {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"R01-no-go: not built\n", "x.go:4:2: not enough return values", "R01-old: stale\n", "R02-unnoticed: survived\n", "\n1 of 4 mutants killed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if !strings.Contains(log.String(), "R01-f: killed") || !strings.Contains(log.String(), "4/4 ") {
		t.Errorf("progress:\n%s", log.String())
	}
	if got := read(t, "x/x.go"); got != project["x/x.go"] {
		t.Errorf("the tree was changed:\n%s", got)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// One that is killed is a success, also with a change that is not committed.
func TestRunOne(t *testing.T) {
	inProject(t)
	write(t, "x/x.go", "// Package x has one more line.\n"+project["x/x.go"])
	if err := run(t.Context(), io.Discard, io.Discard, "^R01-f$", 1); err != nil {
		t.Error(err)
	}
}

// Tests that fail without a patch show nothing with one.
func TestRunRefuses(t *testing.T) {
	inProject(t)
	write(t, "x/x.go", strings.Replace(project["x/x.go"], "return 1", "return 5", 1))
	if err := run(t.Context(), io.Discard, io.Discard, "R01-old", 1); !errors.Is(err, errBaseline) {
		t.Errorf("failing tests: %v", err)
	}
	if err := run(t.Context(), io.Discard, io.Discard, "R99", 1); !errors.Is(err, errNoMutants) {
		t.Errorf("no patch: %v", err)
	}
	if err := run(t.Context(), io.Discard, io.Discard, "(", 1); err == nil {
		t.Error("a bad pattern is taken")
	}
}

// A copy has what git tracks and what it would, as it is now.
func TestSnapshot(t *testing.T) {
	inProject(t)
	write(t, "untracked", "new")
	write(t, "x/x.go", "changed")
	if err := os.Remove(".gitignore"); err != nil {
		t.Fatal(err)
	}
	write(t, ".git/info/exclude", "ignored\n")
	dst := t.TempDir()
	if err := snapshot(t.Context(), ".", dst); err != nil {
		t.Fatal(err)
	}
	if read(t, dst+"/untracked") != "new" || read(t, dst+"/x/x.go") != "changed" || read(t, dst+"/go.mod") != project["go.mod"] {
		t.Error("the copy is not as the tree is")
	}
	for _, file := range []string{"ignored", ".gitignore", ".git"} {
		if _, err := os.Stat(filepath.Join(dst, file)); err == nil {
			t.Errorf("%s was copied", file)
		}
	}
	if err := snapshot(t.Context(), t.TempDir(), dst); err == nil {
		t.Error("a folder without git is a tree")
	}
}
