package memlock

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNotAllowed says what is at risk, and how to allow what Lock wants.
var ErrNotAllowed = errors.New("memory cannot be locked: while the device is reset, this program may have to be read from a disk " +
	"that is reached through the device itself, and the reset would wait for ever; to allow it grant CAP_IPC_LOCK " +
	"(systemd: AmbientCapabilities=CAP_IPC_LOCK; containers: --cap-add IPC_LOCK) " +
	"or lift the limit (systemd: LimitMEMLOCK=infinity; containers: --ulimit memlock=-1)")

// Lock locks the memory of the process, present and future, and reads the files
// that are mapped into it. It does nothing and returns ErrNotAllowed where not
// all of it may be locked. It is called at the start; once more, it reads what
// was mapped since then.
func Lock() error {
	ok, err := allowed()
	if err != nil {
		return err
	}
	if !ok {
		return ErrNotAllowed
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return os.NewSyscallError("mlockall", err)
	}
	return readFiles()
}

// allowed reports whether any amount of memory may be locked.
func allowed() (bool, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		return false, os.NewSyscallError("getrlimit", err)
	}
	if limit.Cur == unix.RLIM_INFINITY {
		return true, nil
	}
	page := uint64(os.Getpagesize())
	if limit.Cur > math.MaxInt-page {
		return false, nil
	}
	return mayLock(int(limit.Cur + page))
}

// mayLock tries to lock so many bytes, none of which is ever touched.
func mayLock(size int) (bool, error) {
	mem, err := unix.MmapPtr(-1, 0, nil, uintptr(size), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return false, fmt.Errorf("reserve %d bytes of address space: %w", size, err)
	}
	_, _, errno := unix.Syscall(unix.SYS_MLOCK2, uintptr(mem), uintptr(size), unix.MLOCK_ONFAULT)
	if err := unix.MunmapPtr(mem, uintptr(size)); err != nil {
		return false, os.NewSyscallError("munmap", err)
	}
	switch errno {
	case 0:
		return true, nil
	case unix.ENOMEM, unix.EPERM: // above the limit; a limit of 0
		return false, nil
	}
	return false, os.NewSyscallError("mlock2", errno)
}

// readFiles brings the mapped files into memory, and locks them whole: mlock
// without ONFAULT touches every page, and makes those of the data segment
// private.
func readFiles() error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for _, m := range files(maps) {
		if _, _, errno := unix.Syscall(unix.SYS_MLOCK, m.start, m.end-m.start, 0); errno != 0 {
			return fmt.Errorf("lock %s in memory: %w", m.path, errno)
		}
	}
	return nil
}
