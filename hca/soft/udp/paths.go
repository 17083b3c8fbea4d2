package udp

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

var _ transport.Paths = (*Transport)(nil)

// pathSockets ask the kernel for the MTUs of paths: a UDP socket that is connected to a
// destination has the route of its datagrams. These sockets never send or receive. They are
// bound to the netdev, so that they find the routes of the transport's own datagrams, and not
// the host's default route.
type pathSockets struct {
	index int // of the netdev

	mu     sync.Mutex // guards what follows
	v4, v6 int        // descriptors; -1: none
}

// openPaths returns the sockets of a netdev.
func openPaths(index int) (*pathSockets, error) {
	p := &pathSockets{index: index, v4: -1, v6: -1}
	var err error
	if p.v4, err = openPath(unix.AF_INET, index); err != nil {
		return nil, err
	}
	if p.v6, err = openPath(unix.AF_INET6, index); err != nil && !errors.Is(err, unix.EAFNOSUPPORT) {
		p.close()
		return nil, err
	}
	return p, nil
}

func openPath(family, index int) (int, error) {
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	bound := []option{{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index}}
	if err := errors.Join(refuseAll(fd), setOptions(fd, bound)); err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// mtu returns the MTU of the path to dst, as the kernel knows it.
func (p *pathSockets) mtu(dst netip.Addr) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fd, level, name := p.v4, unix.SOL_IP, unix.IP_MTU
	if dst.Is6() {
		fd, level, name = p.v6, unix.SOL_IPV6, unix.IPV6_MTU
	}
	if fd < 0 {
		return 0, hca.ErrClosed
	}
	var to sockaddr
	var length uint32
	if dst.Is4() {
		length = setAddr4(&to, dst, Port)
	} else {
		length = setAddr6(&to, dst, p.index)
	}
	if err := connect(fd, &to, length); err != nil {
		return 0, err
	}
	mtu, err := unix.GetsockoptInt(fd, level, name)
	// The kernel has chosen a source address and a port, which the next query must not keep.
	to = sockaddr{}
	to.Family = unix.AF_UNSPEC
	return mtu, errors.Join(os.NewSyscallError("getsockopt IP_MTU", err), connect(fd, &to, unix.SizeofSockaddrInet6))
}

// connect never waits, because the sockets are UDP sockets.
func connect(fd int, to *sockaddr, length uint32) error {
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(to)), uintptr(length))
	if errno != 0 {
		return os.NewSyscallError("connect", errno)
	}
	return nil
}

// close makes every later query fail.
func (p *pathSockets) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, fd := range []*int{&p.v4, &p.v6} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
		}
		*fd = -1
	}
}

// PathMTU implements transport.Paths. After Close it returns hca.ErrClosed.
func (t *Transport) PathMTU(dst netip.Addr) (int, error) {
	mtu, err := t.paths.mtu(dst)
	if err != nil {
		return 0, fmt.Errorf("query the MTU of the path to %s: %w", dst, err)
	}
	return min(mtu, t.watch.mtu()), nil
}

// PathChanged implements transport.Paths.
func (t *Transport) PathChanged() <-chan struct{} { return t.watch.tooLong }
