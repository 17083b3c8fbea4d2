package scripts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Bounds of a committed corpus, since every go test runs it.
const (
	maxInputs    = 20
	maxInputSize = 4 << 10 // bytes
)

// Every fuzz target has a small corpus of small inputs under testdata/fuzz, and every
// corpus has a target. To create a corpus, run the target for a few minutes and copy inputs
// of different kinds from $(go env GOCACHE)/fuzz.
func TestEveryFuzzTargetHasACorpus(t *testing.T) {
	targets, corpora := map[string]bool{}, map[string]int{}
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		dir, name := filepath.Split(path)
		if strings.HasSuffix(name, "_test.go") {
			text, err := os.ReadFile(path)
			for _, m := range target.FindAllStringSubmatch(string(text), -1) {
				targets[filepath.Join(dir, "testdata/fuzz", m[1])] = true
			}
			return err
		}
		if corpus := filepath.Clean(dir); strings.HasSuffix(filepath.Dir(corpus), "testdata/fuzz") {
			corpora[corpus]++
			if info, err := d.Info(); err != nil || info.Size() > maxInputSize {
				t.Errorf("%s: %v, or larger than %d bytes", path, err, maxInputSize)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for corpus := range targets {
		if n := corpora[corpus]; n == 0 || n > maxInputs {
			t.Errorf("%s has %d inputs, want 1 to %d", corpus, n, maxInputs)
		}
	}
	for corpus := range corpora {
		if !targets[corpus] {
			t.Errorf("%s has no fuzz target", corpus)
		}
	}
	if t.Logf("%d targets", len(targets)); len(targets) == 0 {
		t.Error("found no fuzz target: does the expression still match?")
	}
}
