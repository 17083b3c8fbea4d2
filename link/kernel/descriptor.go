package kernel

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Duplicate returns another descriptor of an open file or socket. The caller closes it.
func Duplicate(c syscall.Conn) (fd int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return -1, err
	}
	cerr := raw.Control(func(old uintptr) { fd, err = DuplicateFD(int(old)) })
	return fd, errors.Join(cerr, err)
}

// DuplicateFD is Duplicate of a descriptor.
func DuplicateFD(fd int) (int, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	return fd, os.NewSyscallError("duplicate a descriptor", err)
}

// CloseAll closes descriptors.
func CloseAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// Peer returns the process and the user at the other end of a UNIX socket, as they were when it connected or
// listened (SO_PEERCRED, unix(7)). The PID is 0 if it is in another PID namespace.
func Peer(c syscall.Conn) (peer *unix.Ucred, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	cerr := raw.Control(func(fd uintptr) {
		peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		err = os.NewSyscallError("SO_PEERCRED", err)
	})
	return peer, errors.Join(cerr, err)
}
