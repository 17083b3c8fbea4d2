package process

import (
	"errors"
	"math"
	"os"
	"runtime"
	"runtime/metrics"

	"golang.org/x/sys/unix"
)

// Usage is what this process uses of its host.
type Usage struct {
	Goroutines int
	FDs        int // open file descriptors; -1: unknown
	HeapBytes  uint64
}

// ReadUsage returns the current usage.
func ReadUsage() Usage {
	u := Usage{Goroutines: runtime.NumGoroutine(), FDs: openFiles()}
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	u.HeapBytes = heap[0].Value.Uint64()
	return u
}

// openFiles returns how many file descriptors are open; -1: unknown. Counting opens another one. If that fails with EMFILE,
// all are in use, and openFiles returns the limit.
func openFiles() int {
	fds, err := os.ReadDir("/proc/self/fd")
	if err == nil {
		return len(fds) - 1 // not the open directory itself
	}
	var limit unix.Rlimit
	if errors.Is(err, unix.EMFILE) && unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) == nil {
		return int(min(limit.Cur, math.MaxInt32))
	}
	return -1
}
