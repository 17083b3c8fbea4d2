package process

import (
	"os"
	"runtime"
	"runtime/metrics"
)

// Usage is what this process uses of its host.
type Usage struct {
	Goroutines int
	FDs        int // open file descriptors; -1: unknown
	HeapBytes  uint64
}

// ReadUsage returns the current usage.
func ReadUsage() Usage {
	u := Usage{Goroutines: runtime.NumGoroutine(), FDs: -1}
	if fds, err := os.ReadDir("/proc/self/fd"); err == nil {
		u.FDs = len(fds) - 1 // not the open directory itself
	}
	heap := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(heap)
	u.HeapBytes = heap[0].Value.Uint64()
	return u
}
