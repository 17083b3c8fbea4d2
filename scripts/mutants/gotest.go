package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// event is one line of go test -json (go doc test2json, TestEvent).
type event struct {
	Action      string
	Package     string
	Test        string
	Output      string
	FailedBuild string // the import path that did not build, in the event of the package that needs it
}

// outcome is what became of a run of go test.
type outcome struct {
	ended    map[test]bool // tests that ran to their end: whether they passed
	unbuilt  bool
	timedOut bool
	output   strings.Builder
}

// goTest runs tests in the tree at dir, procs packages at once. It says nothing
// of its own of a failure: the outcome does.
func goTest(ctx context.Context, dir string, tests []test, procs string, limit time.Duration) *outcome {
	cmd := exec.CommandContext(ctx, "go", goTestArgs(tests, procs, limit)...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	o := readOutcome(out.String())
	if err != nil && len(o.ended) == 0 {
		o.output.WriteString(err.Error() + "\n")
	}
	return o
}

// goTestArgs are those of one run for tests of any packages. A package runs what
// is asked of another too if it has a test of that name.
func goTestArgs(tests []test, procs string, limit time.Duration) []string {
	var patterns, packages []string
	for _, t := range tests {
		patterns = append(patterns, t.pattern())
		packages = append(packages, t.pkg)
	}
	slices.Sort(packages)
	args := []string{
		"test", "-json", "-count=1", "-trimpath", "-vet=off",
		"-p=" + procs, "-timeout=" + limit.String(), "-run=" + strings.Join(patterns, "|"),
	}
	return append(args, slices.Compact(packages)...)
}

// readOutcome reads the output of go test -json. A line that is no event is
// kept for people.
func readOutcome(output string) *outcome {
	o := &outcome{ended: map[test]bool{}}
	for line := range strings.Lines(output) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			e = event{Output: line}
		}
		o.step(e)
	}
	return o
}

func (o *outcome) step(e event) {
	o.output.WriteString(e.Output)
	o.timedOut = o.timedOut || strings.HasPrefix(e.Output, "panic: test timed out after ")
	o.unbuilt = o.unbuilt || e.FailedBuild != "" || e.Action == "build-fail"
	if ends := e.Action == "pass" || e.Action == "fail"; ends && e.Test != "" {
		o.ended[test{e.Package, e.Test}] = e.Action == "pass"
	}
}
