package coordinator

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

var errForeign = errors.New("only root and the user the daemon runs as may share the device")

// credentials returns who is at the other end, by the kernel's word; errForeign
// for one who may not be. The number of a process of another PID namespace is 0.
func credentials(nc *net.UnixConn) (who *unix.Ucred, err error) {
	err = onSocket(nc, func(fd int) (err error) {
		who, err = unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		return err
	})
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask who is there: %w", err)
	case !mayShare(who.Uid, uint32(os.Geteuid())):
		return nil, fmt.Errorf("user %d: %w", who.Uid, errForeign)
	}
	return who, nil
}

func mayShare(peer, self uint32) bool { return peer == 0 || peer == self }

// onSocket calls f with the descriptor of nc.
func onSocket(nc *net.UnixConn, f func(fd int) error) error {
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = f(int(fd)) }); err != nil {
		return err
	}
	return failed
}

// process is a peer's process, named by a pidfd, which no later process takes
// over.
type process struct{ pidfd *os.File }

// processOf returns the process that connected nc; nil where the kernel has no
// such pidfd, being older than Linux 6.5.
func processOf(nc *net.UnixConn) (*process, error) {
	var pidfd int
	err := onSocket(nc, func(fd int) (err error) {
		pidfd, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		return err
	})
	if errors.Is(err, unix.ENOPROTOOPT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask for the process: %w", err)
	}
	if err := unix.SetNonblock(pidfd, true); err != nil { // for the runtime's poller
		unix.Close(pidfd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return &process{os.NewFile(uintptr(pidfd), "pidfd")}, nil
}

// wait blocks until the process has ended; false: close was called first.
func (p *process) wait() bool {
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(hasEnded) == nil
}

// hasEnded asks a pidfd, which becomes readable then.
func hasEnded(pidfd uintptr) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 0)
	return err == nil && n == 1
}

func (p *process) close() { p.pidfd.Close() }
