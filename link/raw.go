package link

import (
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The queue's descriptor never blocks, so these calls bypass Go's scheduler. The scheduler
// would reassign the processor during a call of 20 us, such as a write during which the
// host's TCP runs. A thread switch for each frame cost a fifth of the CPU time per byte.

// rawReadv is readv(2) into two buffers. Errno 0 means success.
func rawReadv(fd uintptr, vec *[2]unix.Iovec) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall(unix.SYS_READV, fd, uintptr(unsafe.Pointer(vec)), uintptr(len(vec)))
	return int(n), errno
}

// rawWritev is writev(2) of a whole frame. Errno 0 means success.
func rawWritev(fd uintptr, vec []unix.Iovec) unix.Errno {
	first, n := unsafe.SliceData(vec), uintptr(len(vec))
	_, _, errno := unix.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(first)), n)
	return errno
}

// hwAddrReq is a struct ifreq with a hardware address (linux/if.h).
type hwAddrReq struct {
	name   [unix.IFNAMSIZ]byte
	family uint16
	addr   [6]byte
	_      [16]byte
}

// queueMAC returns the MAC of a queue's interface.
func queueMAC(fd int) ([6]byte, error) {
	var req hwAddrReq
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCGIFHWADDR, uintptr(unsafe.Pointer(&req)))
	if errno != 0 {
		return [6]byte{}, os.NewSyscallError("SIOCGIFHWADDR", errno)
	}
	return req.addr, nil
}
