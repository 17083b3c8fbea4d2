// Package transcript plays the transcripts in a package's testdata: files that tell what a
// state machine does, as a story. A line is a comment (#), an input, or, indented by a tab, an
// output of the input above it. With the flag -rewrite the outputs are replaced by the actual
// ones.
package transcript

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expected outputs of the transcripts")

// Run plays each file of testdata as a subtest: play returns the file with the actual outputs.
// A file that shows a requirement, such as R06-budget.txt, is the subtest R06/budget.
func Run(t *testing.T, play func(t *testing.T, script string) string) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("transcripts: %v, %v, want at least one", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".txt")
		if name[0] == 'R' {
			name = strings.Replace(name, "-", "/", 1)
		}
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			switch got := play(t, string(want)); {
			case *rewrite:
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil { //nolint:gosec // a golden file
					t.Fatal(err)
				}
			case got != string(want):
				t.Errorf("%s: unexpected output; run with -rewrite and see git diff\n%s", file, firstDiff(got, string(want)))
			}
		})
	}
}

func firstDiff(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("line %d\n got %q\nwant %q", i+1, g[i], w[i])
		}
	}
	return fmt.Sprintf("got %d lines, want %d", len(g), len(w))
}

// Play returns a script with the outputs of its inputs.
func Play(script string, input func(line string) []string) string {
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimSuffix(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue
		}
		fmt.Fprintln(&out, line)
		if line == "" || line[0] == '#' {
			continue
		}
		for _, o := range input(line) {
			fmt.Fprintf(&out, "\t%s\n", o)
		}
	}
	return out.String()
}

// failer is the part of [testing.TB] that the functions below need.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

// Number returns the number in a word.
func Number(t failer, word string) int {
	t.Helper()
	n, err := strconv.ParseInt(word, 0, 32)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return int(n)
}

// Duration returns the duration in a word.
func Duration(t failer, word string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(word)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return d
}

// Repeat plays the inputs of a line "repeat N : INPUT ; INPUT..." N times. It returns false if
// the line is another one. Round is called before each round.
func Repeat(t failer, line string, round func(), input func(line string)) bool {
	t.Helper()
	rest, ok := strings.CutPrefix(line, "repeat ")
	if !ok {
		return false
	}
	n, inputs, _ := strings.Cut(rest, ":")
	for range Number(t, strings.TrimSpace(n)) {
		round()
		for in := range strings.SplitSeq(inputs, ";") {
			input(strings.TrimSpace(in))
		}
	}
	return true
}
