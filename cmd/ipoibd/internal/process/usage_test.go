package process

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// The number of open files is known even when no more can be opened.
func TestUsageWithoutAFileLeft(t *testing.T) {
	before := ReadUsage().FDs
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	if got := ReadUsage().FDs; got != before+1 {
		t.Errorf("%d open, want %d", got, before+1)
	}
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	const few = 3 // which this process has open
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: few, Max: limit.Max}))
	got := ReadUsage().FDs
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if got != few {
		t.Errorf("%d open, want the limit, %d", got, few)
	}
}
