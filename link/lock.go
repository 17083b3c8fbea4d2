package link

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// lockBacklog is how many processes may have asked who holds a lock before the
// answer becomes "unknown": nobody accepts their connections.
const lockBacklog = 4096

// lock is the ownership of an interface's name in a network namespace: an
// abstract UNIX socket, which the kernel takes away with its process.
type lock struct{ fd int }

// acquire takes the lock of a name, or returns an OwnedError.
func acquire(name string) (lock, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return lock{}, os.NewSyscallError("socket", err)
	}
	err = unix.Bind(fd, lockAddr(name))
	if err == nil {
		err = unix.Listen(fd, lockBacklog)
	}
	if err == nil {
		return lock{fd}, nil
	}
	unix.Close(fd)
	if errors.Is(err, unix.EADDRINUSE) {
		return lock{}, &OwnedError{Name: name, PID: holder(name)}
	}
	return lock{}, fmt.Errorf("lock %s: %w", name, err)
}

func (l lock) release() error { return os.NewSyscallError("close", unix.Close(l.fd)) }

// lockAddr is the abstract address of a name's lock; x/sys writes the leading
// '@' as a zero byte (unix(7)).
func lockAddr(name string) *unix.SockaddrUnix {
	return &unix.SockaddrUnix{Name: "@ipoibd/link/" + name}
}

// holder returns the process that listens on the lock of name, 0 where it
// cannot be told.
func holder(name string) int {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	if unix.Connect(fd, lockAddr(name)) != nil {
		return 0
	}
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}
