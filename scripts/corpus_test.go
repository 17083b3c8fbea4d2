package scripts_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Bounds of a committed corpus: it is run by every go test.
const (
	maxInputs    = 20
	maxInputSize = 4 << 10 // bytes
)

// Every fuzz target has a corpus under testdata/fuzz, a small one of small inputs,
// and every corpus has a target. What a target finds in its first minutes is in
// the cache, $(go env GOCACHE)/fuzz; some of that, of different kinds, is enough.
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
			t.Errorf("%s belongs to no fuzz target", corpus)
		}
	}
	t.Logf("%d targets", len(targets))
}
