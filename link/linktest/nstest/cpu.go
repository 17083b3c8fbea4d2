package nstest

import (
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// OnOneCPU keeps the calling goroutine on one CPU until it ends. A veth queues a frame on the CPU that sends it
// (netif_rx, net/core/dev.c), so a frame that is sent next on another CPU can overtake it. A test that expects an order
// behind a veth calls it in the goroutine that sends.
func OnOneCPU(tb testing.TB) {
	tb.Helper()
	runtime.LockOSThread() // not unlocked: the thread ends with the goroutine
	var here uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&here)), 0, 0); errno != 0 {
		tb.Fatalf("getcpu: %v", errno)
	}
	var cpus unix.CPUSet
	cpus.Set(int(here))
	must(tb, "keep the thread on one CPU", unix.SchedSetaffinity(0, &cpus))
}
