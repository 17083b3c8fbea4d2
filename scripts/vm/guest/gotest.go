package guest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"ipoibd/scripts/vm/kernel"
)

// TestBinary compiles the tests of a package for guests into the kit, once, and returns their path. Those for another
// architecture are compiled without cgo. It must be called before Enter, while the network that go may need is available.
func TestBinary(t *testing.T, pkg string, flags ...string) string {
	t.Helper()
	Require(t)
	path := filepath.Join(os.Getenv(kitEnv), strings.ReplaceAll(pkg, "/", "-")+".test")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	args := append([]string{"test", "-c", "-ldflags=-s -w", "-o", path}, flags...)
	cmd := exec.CommandContext(t.Context(), "go", append(args, pkg)...)
	if arch() != kernel.Arch(runtime.GOARCH) {
		cmd.Env = append(os.Environ(), "GOARCH="+string(arch()), "CGO_ENABLED=0")
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("compile the tests of %s: %v\n%s", pkg, err, out)
	}
	return path
}

// RunTests runs a test binary of this machine in a guest, as root, and reports each of
// its tests and subtests as a subtest of t, with its output. A skipped test fails,
// because the guest must have everything that tests need.
func (g *Guest) RunTests(t *testing.T, binary string, limit time.Duration, env []string, args ...string) {
	t.Helper()
	g.RunTestsExcept(t, binary, limit, env, nil, args...)
}

// RunTestsExcept is RunTests with tests that must fail in the guest, by name, each with a text that it prints then. One
// that passes, does not run, or prints something else fails, so the exceptions stay exact.
func (g *Guest) RunTestsExcept(t *testing.T, binary string, limit time.Duration, env []string, except map[string]string, args ...string) {
	t.Helper()
	const path = "/run/go.test"
	g.PutFile(path, binary)
	start := time.Now()
	run := []string{"-test.v=test2json", "-test.timeout=" + limit.String()}
	p := g.StartEnv(env, path, append(run, args...)...)
	result := p.Wait(limit + runLimit)
	tests := parseTests(t, p.Stdout())
	failed := reportTests(t, tests, except)
	if !result.OK() && !failed && len(except) == 0 {
		t.Errorf("the test binary in the guest failed: %v\n%s\n%s", result, tail([]byte(p.Stdout())), p.Stderr())
	} else if !result.OK() {
		t.Logf("the test binary in the guest ended: %v\n%s", result, p.Stderr()) // the standard error shows a crash
	}
	t.Logf("the tests in the guest took %v", time.Since(start).Round(time.Millisecond))
}

// outcome is the outcome of a test in the guest.
type outcome struct {
	name   string
	action string // pass, fail or skip; empty if it never ended
	output strings.Builder
}

// parseTests parses the output of a test binary with go tool test2json, and returns
// the tests in the order of their start.
func parseTests(t *testing.T, output string) (tests []*outcome) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "tool", "test2json")
	cmd.Stdin, cmd.Stderr = strings.NewReader(output), os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go tool test2json: %v", err)
	}
	byName := map[string]*outcome{}
	for line := range bytes.Lines(out) {
		e := parseEvent(t, line)
		if e.Test == "" {
			continue
		}
		if byName[e.Test] == nil {
			byName[e.Test] = &outcome{name: e.Test}
			tests = append(tests, byName[e.Test])
		}
		byName[e.Test].step(e)
	}
	return tests
}

// event is a line of test2json (go doc test2json, TestEvent).
type event struct {
	Action, Test, Output string
}

func parseEvent(t *testing.T, line []byte) (e event) {
	t.Helper()
	if err := json.Unmarshal(line, &e); err != nil {
		t.Fatalf("parse %q of go tool test2json: %v", line, err)
	}
	return e
}

func (o *outcome) step(e event) {
	switch e.Action {
	case "output":
		o.output.WriteString(e.Output)
	case "pass", "fail", "skip":
		o.action = e.Action
	}
}

// reportTests runs a subtest for each test in the guest, and returns true if one
// failed that was not an exception.
func reportTests(t *testing.T, tests []*outcome, except map[string]string) (failed bool) {
	t.Helper()
	if len(tests) == 0 {
		t.Error("no test ran in the guest")
	}
	missing := maps.Clone(except)
	for _, o := range tests {
		text, isException := except[o.name]
		delete(missing, o.name)
		ok := t.Run(o.name, func(t *testing.T) {
			t.Log(o.output.String())
			if problem := o.judge(isException, text); problem != "" {
				t.Errorf("in the guest: %s", problem)
			}
		})
		failed = failed || !ok
	}
	for name := range missing {
		t.Errorf("%s did not run in the guest, where it should fail", name)
	}
	return failed || len(missing) > 0
}

// judge returns what is wrong with an outcome, or an empty text. An exception must fail and print a text.
func (o *outcome) judge(isException bool, text string) string {
	action := cmp.Or(o.action, "never ended")
	switch {
	case !isException && action != "pass":
		return action
	case isException && action != "fail":
		return action + ", but it should fail"
	case isException && !strings.Contains(o.output.String(), text):
		return fmt.Sprintf("it should fail with %q", text)
	}
	return ""
}
