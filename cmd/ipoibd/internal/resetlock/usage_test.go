package resetlock

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// usage is what a leak would raise.
type usage struct{ goroutines, descriptors int }

func (u usage) exceeds(v usage) bool {
	return u.goroutines > v.goroutines || u.descriptors > v.descriptors
}

func inUse() usage {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return usage{runtime.NumGoroutine(), len(list)}
}

// settle waits until no more is in use than before, and returns what is.
func settle(before usage) usage {
	now := inUse()
	for end := time.Now().Add(ample); now.exceeds(before) && time.Now().Before(end); now = inUse() {
		time.Sleep(5 * time.Millisecond)
	}
	return now
}

// checkLeaks makes the test fail if it leaves more in use than it found.
func checkLeaks(t *testing.T) {
	t.Helper()
	startPoller(t)
	before := inUse()
	t.Cleanup(func() {
		if left := settle(before); left.exceeds(before) {
			stacks := make([]byte, 1<<20)
			t.Errorf("%+v in use, %+v before\n%s", left, before, stacks[:runtime.Stack(stacks, true)])
		}
	})
}

// startPoller makes the runtime open the descriptors of its poller, which it
// keeps.
func startPoller(t *testing.T) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
}
