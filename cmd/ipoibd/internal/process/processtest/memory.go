package processtest

import (
	"os"

	"golang.org/x/sys/unix"
)

// MajorFaults returns how often a thread of the process has waited for a page to be read
// from a disk.
func MajorFaults() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return usage.Majflt, nil
}

// DropCaches makes the kernel drop the cached pages, directory entries and inodes that are
// clean and not in use. Only root of the initial user namespace may do so.
func DropCaches() error {
	unix.Sync() // dirty pages are not dropped
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}
