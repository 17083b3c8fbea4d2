package scripts_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// ringsMakefile defines rings that `make test` runs instead of its own. Each runs the tests
// of one package, or a command.
const ringsMakefile = `
ring-%:
	cd $(DIR) && $(call ring,./$*,$(BUDGET))
check-%:
	$(call check,$@,$(BUDGET),$(CHECK_$*))
BUDGET = 1m
ring-hang: BUDGET = 15s
check-hang: BUDGET = 1s
CHECK_ok = echo fine
CHECK_bad = sh -c 'echo x is unused; exit 1'
CHECK_hang = sleep 60
`

// packages are the tests of those rings, by package.
var packages = map[string]string{
	"pass":  `func Test(t *testing.T) {}`,
	"fail":  `func Test(t *testing.T) { t.Error("got 1") }`,
	"skip":  `func Test(t *testing.T) { t.Skip("no disk") }`,
	"hang":  `func Test(t *testing.T) { t.Log("waiting"); select {} }`,
	"leak":  `func TestMain(m *testing.M) { m.Run(); println("leak: 3 goroutines"); panic(1) }; func Test(t *testing.T) {}`,
	"build": `func Test(t *testing.T) { undefined() }`,
}

// `make test` fails if a test, a check or a build fails or hangs, or if CI skips a test. It
// says why, still runs the other rings, and counts all tests together.
func TestMakeTestReportsEveryFailure(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs make test")
	}
	// Reading these files makes cached results depend on them.
	for _, file := range []string{"/Makefile", "/tools/go.mod"} {
		if _, err := os.Stat(root + file); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	write := func(name, text string) {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module m\n\ngo 1.26\n")
	write("rings.mk", "DIR = "+dir+ringsMakefile)
	for name, text := range packages {
		write(name+"/a_test.go", "package "+name+"\n\nimport \"testing\"\n\n"+text+"\n")
	}
	for _, c := range []struct {
		rings, ci string
		fails     bool
		want      []string
	}{
		{rings: "ring-pass check-ok", ci: "true", want: []string{"DONE 1 tests in"}},
		{rings: "ring-fail ring-pass", fails: true, want: []string{"got 1", "DONE 2 tests, 1 failure"}},
		{rings: "ring-skip ring-pass", want: []string{"no disk", "DONE 2 tests, 1 skipped in"}},
		{rings: "ring-skip ring-pass", ci: "true", fails: true, want: []string{"no disk", "1 tests were skipped"}},
		{rings: "ring-hang ring-pass", fails: true, want: []string{"waiting", "m/hang.Test(", "DONE 2 tests, 1 failure"}},
		{rings: "ring-leak ring-pass", fails: true, want: []string{"leak: 3 goroutines", "DONE 2 tests, 1 failure"}},
		{rings: "ring-build ring-pass", fails: true, want: []string{"undefined: undefined", "DONE 1 tests, 1 failure"}},
		{rings: "check-bad ring-pass", fails: true, want: []string{"x is unused", "DONE 1 tests, 1 failure"}},
		{rings: "check-hang ring-pass", fails: true, want: []string{"exit status 124", "DONE 1 tests, 1 failure"}},
		{rings: "check-ok", fails: true, want: []string{"no test ran"}},
	} {
		t.Run(c.rings+" CI="+c.ci, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("make", "--old-file=deps-vm", "--old-file=deps-sm", "--old-file=deps-docker", "test", "RINGS="+c.rings)
			cmd.Dir = root
			// Do not inherit the flags of a `make test` that runs this test.
			cmd.Env = append(os.Environ(), "GOTESTSUM_JSONFILE=", "MAKEFLAGS=", "MAKELEVEL=", "MAKEFILES="+dir+"/rings.mk", "CI="+c.ci)
			output, err := cmd.CombinedOutput()
			if (err != nil) != c.fails {
				t.Errorf("make test: %v, want an error: %v", err, c.fails)
			}
			for _, want := range c.want {
				if !strings.Contains(string(output), want) {
					t.Errorf("the output lacks %q", want)
				}
			}
			if t.Failed() {
				t.Logf("%s", output)
			}
		})
	}
}
