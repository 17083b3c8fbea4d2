// Package transcript replays the transcripts of a package: files of inputs with the expected
// outputs below each. Only tests import it.
package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected outputs of the transcripts")

// Each runs a subtest for each testdata/*.txt. The subtest is named after the file, with a slash
// in place of the first dash, so that the requirements in a name select it. The function replay
// replays the inputs of a transcript, and returns the transcript with the actual outputs. With
// the flag -rewrite, this replaces the file.
func Each(t *testing.T, replay func(t *testing.T, text string) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("transcripts: %v, %v, want at least one", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		t.Run(strings.Replace(name, "-", "/", 1), func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := replay(t, string(want))
			switch {
			case *rewrite:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // a golden file
					t.Fatal(err)
				}
			case got != string(want):
				t.Errorf("%s: unexpected output; run with -rewrite and see git diff\n%s",
					file, firstDifference(got, string(want)))
			}
		})
	}
}

func firstDifference(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %q\nwant %q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}
