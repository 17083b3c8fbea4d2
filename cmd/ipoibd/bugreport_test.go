package main

import (
	"strings"
	"testing"
)

// A command that prints without end does not fill the memory: its output is cut, and that is noted.
func TestReportedOutputIsBounded(t *testing.T) {
	const size = 4 * maxReported
	got := outputOf(t.Context(), []string{"head", "--bytes=268435456", "/dev/zero"})
	if len(got) > maxReported+1000 || !strings.HasSuffix(string(got[len(got)-min(len(got), 200):]), "head --bytes=268435456 /dev/zero: the rest of its output is left out\n") {
		t.Errorf("%d bytes of %d, which end with %q", len(got), size, got[max(0, len(got)-100):])
	}
	if got := string(outputOf(t.Context(), []string{"sh", "-c", "echo out; echo err >&2; exit 3"})); got != "out\nerr\n\nsh -c echo out; echo err >&2; exit 3: exit status 3\n" {
		t.Errorf("%q", got)
	}
}
