package udp

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// Reserve keeps the receiving socket of a netdev bound between one transport and
// the next, so that no other process can bind the port meanwhile. While no
// transport has the socket, a filter refuses every datagram. The zero value
// reserves nothing yet. A Reserve serves one network namespace and one transport
// at a time.
type Reserve struct {
	mu    sync.Mutex
	index int     // of the netdev that sock is bound to
	sock  *socket // nil: nothing is reserved
	taken bool    // by a transport
}

// take returns a descriptor of the reserved socket, which it binds first where
// that is due: at first, and when the netdev is another one. Then the socket of the
// previous netdev stays bound until the new one is.
func (r *Reserve) take(index, buffer int) (*socket, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken {
		return nil, fmt.Errorf("another transport of this process has UDP port %d: %w", Port, hca.ErrBusy)
	}
	if r.sock == nil || r.index != index {
		sock, err := openReceiver(index, buffer)
		if err != nil {
			return nil, err
		}
		if r.sock != nil {
			_ = r.sock.file.Close()
		}
		r.sock, r.index = sock, index
	}
	lent, err := r.sock.lend()
	if err != nil {
		return nil, err
	}
	r.taken = true
	return lent, nil
}

// giveBack ends the use of the socket by a transport, which must not have closed
// its descriptor yet.
func (r *Reserve) giveBack(lent *socket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken = false
	var err error
	if cerr := lent.raw.Control(func(fd uintptr) { err = refuseAll(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Close releases the port, once the transport that has it is closed as well.
func (r *Reserve) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sock == nil {
		return nil
	}
	err := r.sock.file.Close()
	r.sock = nil
	return err
}

// lend duplicates the descriptor and lets the socket receive. Datagrams in the queue,
// which came before this transport, are dropped.
func (s *socket) lend() (*socket, error) {
	lent := -1
	var dropped uint32
	var err error
	cerr := s.raw.Control(func(fd uintptr) {
		if err = empty(int(fd)); err != nil {
			return
		}
		dropped, _ = socketDrops(fd)
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0); err == nil {
			lent, err = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
		}
	})
	if err := errors.Join(cerr, os.NewSyscallError("lend the receiving socket", err)); err != nil {
		return nil, err
	}
	out, err := own(lent, s.ipv6)
	if err != nil {
		return nil, err
	}
	out.dropped = dropped
	return out, nil
}

// empty drops what the queue of a socket holds. It refuses whatever arrives first,
// since a socket that has just been bound does not do so yet: else a flood could
// keep it here for ever.
func empty(fd int) error {
	if err := refuseAll(fd); err != nil {
		return err
	}
	for {
		_, _, err := unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
}

// refuseAll has the kernel drop every datagram that arrives at a socket.
func refuseAll(fd int) error {
	refuse := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}}
	prog := &unix.SockFprog{Len: 1, Filter: &refuse[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog))
}
