package guest

import (
	"strings"
	"testing"
)

// mark begins each line of -test.v=test2json that reports on a test (go doc
// test2json).
const mark = "\x16"

func TestParseTests(t *testing.T) {
	output := strings.ReplaceAll(`=== RUN   TestA
=== RUN   TestA/sub
    a_test.go:1: oh
=== RUN   TestA/other
    --- FAIL: TestA/sub (0.00s)
    --- PASS: TestA/other (0.00s)
--- FAIL: TestA (0.00s)
=== RUN   TestSkipped
--- SKIP: TestSkipped (0.00s)
=== RUN   TestHangs
panic: test timed out
`, "===", mark+"===")
	output = strings.ReplaceAll(output, "---", mark+"---")
	want := map[string]string{"TestA": "fail", "TestA/sub": "fail", "TestA/other": "pass", "TestSkipped": "skip", "TestHangs": ""}
	tests := parseTests(t, output)
	for _, o := range tests {
		if action, ok := want[o.name]; !ok || o.action != action {
			t.Errorf("%s: %q, want %q", o.name, o.action, action)
		}
	}
	if len(tests) != len(want) {
		t.Errorf("%d tests, want %d", len(tests), len(want))
	}
	if got := tests[1].output.String(); !strings.Contains(got, "a_test.go:1: oh") {
		t.Errorf("the output of a subtest: %q", got)
	}
}

// An exception must fail with its text, any other test must pass, and a test that never ended has not failed.
func TestJudge(t *testing.T) {
	for _, c := range []struct {
		action      string
		isException bool
		text        string // in the output "refused"
		want        string
	}{
		{"pass", false, "", ""},
		{"fail", false, "", "fail"},
		{"skip", false, "", "skip"},
		{"", false, "", "never ended"},
		{"fail", true, "refused", ""},
		{"fail", true, "lost", `it should fail with "lost"`},
		{"pass", true, "refused", "pass, but it should fail"},
		{"", true, "refused", "never ended, but it should fail"},
	} {
		o := &outcome{action: c.action}
		o.output.WriteString("refused")
		if got := o.judge(c.isException, c.text); got != c.want {
			t.Errorf("outcome %q, exception %v with %q: %q, want %q", c.action, c.isException, c.text, got, c.want)
		}
	}
}

func TestParseNoTests(t *testing.T) {
	if tests := parseTests(t, "/run/go.test: error while loading shared libraries\n"); len(tests) != 0 {
		t.Errorf("%d tests in the output of a failed start, want none", len(tests))
	}
}
