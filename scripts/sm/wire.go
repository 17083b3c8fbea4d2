package sm

import (
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// newWire returns the two ends of a wire.
func newWire() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "wire")
	if ours, err = wireConn(os.NewFile(uintptr(fds[0]), "wire")); err != nil {
		_ = theirs.Close()
	}
	return ours, theirs, err
}

// wireConn returns the connection of an end of a wire, and closes the file.
func wireConn(f *os.File) (*net.UnixConn, error) {
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("make a wire: %w", err)
	}
	return conn.(*net.UnixConn), nil
}
