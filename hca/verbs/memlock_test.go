package verbs

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

func TestExplainLimit(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		err           error
		needed, limit uint64
		explained     bool
	}{
		{hca.ErrNoMemory, mib + 1, mib, true},
		{hca.ErrNoMemory, mib, 0, true},
		{hca.ErrNoMemory, mib, mib, false},
		{hca.ErrNoMemory, mib, unix.RLIM_INFINITY, false},
		{hca.ErrInvalid, mib + 1, mib, false},
	} {
		err := explainLimit(tt.err, tt.needed, tt.limit)
		if !errors.Is(err, tt.err) || strings.Contains(err.Error(), "RLIMIT_MEMLOCK") != tt.explained {
			t.Errorf("%v for %d bytes with %d: %v", tt.err, tt.needed, tt.limit, err)
		}
	}
}

func TestLimitText(t *testing.T) {
	got := limitText(1<<20, 65536)
	for _, want := range []string{"1048576 bytes", "65536", "CAP_IPC_LOCK", "ulimit -l", "LimitMEMLOCK=", "--ulimit memlock=-1"} {
		if !strings.Contains(got, want) {
			t.Errorf("the text %q lacks %q", got, want)
		}
	}
}
