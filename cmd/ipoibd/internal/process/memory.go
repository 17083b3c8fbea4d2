package process

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// The content of collectorFloor is never read or written, so it takes no memory, but the collector counts it.
var collectorFloor []byte

// TuneCollector lets the heap grow by half between collections, unless GOGC is set: no frame allocates,
// so memory matters more than collections. That alone would halve the smallest heap at which Go collects,
// to 2 MB, and a daemon would collect a moment after its start, when a recovery takes twice as long
// beside it. The floor raises that to 6 MB. Idempotent.
func TuneCollector() {
	if os.Getenv("GOGC") == "" && collectorFloor == nil {
		debug.SetGCPercent(50)
		collectorFloor = make([]byte, 4<<20)
	}
}

// ErrMayNotLock says what is at risk, and how to allow the lock.
var ErrMayNotLock = errors.New("a device reset could wait forever if the kernel reads this program " +
	"from a disk that is reached through the device; " +
	"grant CAP_IPC_LOCK (containers: --cap-add IPC_LOCK) or LimitMEMLOCK=infinity (containers: --ulimit memlock=-1)")

// LockMemory locks the memory of the process, present and future, and reads the files
// that are mapped. Where the kernel does not allow all of it to be locked, it locks
// nothing and returns ErrMayNotLock. Another call reads the files that were mapped
// since the last one.
func LockMemory() error {
	ok, err := mayLock()
	if err != nil {
		return err
	}
	if !ok {
		return ErrMayNotLock
	}
	if err := unix.Mlockall(unix.MCL_CURRENT | unix.MCL_FUTURE | unix.MCL_ONFAULT); err != nil {
		return os.NewSyscallError("mlockall", err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for _, m := range files(maps) {
		// mlock without ONFAULT reads every page, and makes the pages of the data segment
		// private.
		if _, _, errno := unix.Syscall(unix.SYS_MLOCK, m.start, m.end-m.start, 0); errno != 0 {
			return fmt.Errorf("lock %s in memory: %w", m.path, errno)
		}
	}
	return nil
}

// mayLock reports whether the process may lock any amount of memory. It tries to lock
// a page more than the limit, in a mapping that is never used.
func mayLock() (bool, error) {
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
	size := uintptr(limit.Cur + page)
	mem, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return false, fmt.Errorf("reserve %d bytes of address space: %w", size, err)
	}
	_, _, errno := unix.Syscall(unix.SYS_MLOCK2, uintptr(mem), size, unix.MLOCK_ONFAULT)
	if err := unix.MunmapPtr(mem, size); err != nil {
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

// mapping is a part of the address space to which a file is mapped.
type mapping struct {
	start, end uintptr
	path       string
}

// files returns the readable mappings of files, which have an inode, in a text such as
// /proc/self/maps, proc_pid_maps(5):
//
//	00400000-00452000 r-xp 00000000 08:02 173521 /usr/sbin/ipoibd
func files(maps []byte) (out []mapping) {
	for line := range bytes.Lines(maps) {
		var m mapping
		var perms, offset, device string
		var inode uint64
		n, _ := fmt.Sscanf(string(line), "%x-%x %s %s %s %d", &m.start, &m.end, &perms, &offset, &device, &inode)
		if n != 6 || inode == 0 || m.end < m.start || !strings.HasPrefix(perms, "r") {
			continue
		}
		if at := bytes.IndexByte(line, '/'); at >= 0 {
			m.path = string(bytes.TrimSpace(line[at:]))
		}
		out = append(out, m)
	}
	return out
}
