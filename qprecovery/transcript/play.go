package transcript

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Play returns a transcript with the actual outputs. A line is a comment (#), an input, or,
// indented by a tab, an output of the input above it.
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
