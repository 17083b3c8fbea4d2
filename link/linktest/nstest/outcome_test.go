package nstest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"ipoibd/link/linktest/nstest"
)

// outcomeEnv selects how TestOutcome ends in its child.
const outcomeEnv = "TEST_IPOIBD_NSTEST_OUTCOME"

// TestParentTakesOverTheResult runs TestOutcome. Without outcomeEnv it passes.
func TestOutcome(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	switch os.Getenv(outcomeEnv) {
	case "fail":
		t.Error("a failure of the child")
	case "panic":
		panic("a panic of the child")
	case "exit":
		os.Exit(0) // before the end of the test
	case "skip":
		t.Skip("the child's reason")
	case "skip a subtest":
		t.Run("sub", func(t *testing.T) { t.Skip("the subtest's reason") })
	}
}

func TestParentTakesOverTheResult(t *testing.T) {
	for _, c := range []struct{ outcome, says string }{
		{"fail", "a failure of the child"},
		{"panic", "a panic of the child"},
		{"exit", "did not run the test to its end"},
		{"skip", "the child's reason"},
		{"skip a subtest", "the subtest's reason"},
	} {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), exe, "-test.run=^TestOutcome$")
		cmd.Env = append(os.Environ(), outcomeEnv+"="+c.outcome)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), c.says) {
			t.Errorf("%s: %v, want a failure that says %q:\n%s", c.outcome, err, c.says, out)
		}
	}
}

// Do returns the thread to its namespace.
func TestDoComesBack(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	before := namespace(t)
	ns := nstest.New(t)
	var within string
	ns.Do(func() { within = namespace(t) })
	if after := namespace(t); within == before || after != before {
		t.Errorf("namespaces: %s, then %s, then %s", before, within, after)
	}
	if got := strings.TrimSpace(ns.Run("readlink", "/proc/self/ns/net")); got != within {
		t.Errorf("Run is in %s, Do in %s", got, within)
	}
}

func namespace(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// A command that still runs at the end of its test is killed.
func TestCommandEndsWithTheTest(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	var cmd *exec.Cmd
	t.Run("leaves a command", func(t *testing.T) {
		cmd = nstest.New(t).Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
	})
	if err := cmd.Wait(); err == nil {
		t.Error("sleep ended by itself")
	}
}
