package memlocktest

import (
	"os"

	"golang.org/x/sys/unix"
)

// MajorFaults returns how often a thread of the process has had to wait for a
// page to be read, so far.
func MajorFaults() (int64, error) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, os.NewSyscallError("getrusage", err)
	}
	return usage.Majflt, nil
}

// DropCaches makes the kernel drop all of files, directories and inodes that is
// clean and that nobody has mapped. Only root of the initial user namespace may.
func DropCaches() error {
	unix.Sync() // what is dirty stays
	return os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0)
}
