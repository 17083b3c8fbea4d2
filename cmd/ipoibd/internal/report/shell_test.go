package report

import (
	"os/exec"
	"testing"
)

func TestCommandIsQuoted(t *testing.T) {
	for arg, want := range map[string]string{
		"eth0": "eth0", "fd00::1/64": "fd00::1/64", "": "''", "a b": "'a b'", "$(reboot)": "'$(reboot)'", "it's": `'it'\''s'`, "a\nb": "'a\nb'",
	} {
		if got := Command("x %s", arg); got != "x "+want {
			t.Errorf("%q: %s, want %s", arg, got, want)
		}
		if out, err := exec.Command("sh", "-c", "printf %s "+want).Output(); err != nil || string(out) != arg {
			t.Errorf("a shell reads %s as %q, %v", want, out, err)
		}
	}
}
