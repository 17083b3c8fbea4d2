package udp

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Reserve keeps the two sockets of a netdev bound between one transport and the next, so
// that no other process can bind their ports in between. While no transport uses the
// receiving socket, a filter refuses every datagram. The zero value reserves nothing yet.
// A Reserve serves one network namespace, and one transport at a time, or one for each lane. It
// refuses another number of lanes than the first transport on a netdev has asked for. It keeps the
// sharing of that transport, so later ones must be configured alike.
type Reserve struct {
	mu    sync.Mutex
	index int // of the netdev that the sockets are bound to
	lanes int // Config.Lanes when they were bound
	bound *pair
	taken int // transports that use them

	destroyed atomic.Uint64
}

// Destroyed returns how often the sockets were bound again because another process had destroyed
// one of them.
func (r *Reserve) Destroyed() uint64 { return r.destroyed.Load() }

// pair holds the two sockets of a netdev, and those of further lanes. They are not in the
// runtime's poller, because each datagram would wake it.
type pair struct {
	recv, send bound
	member     *Membership // in the group of daemons that share the port; nil: it is not shared
	unshared   error       // why the port is not shared although Config.Share asks for it
	more       []lanePorts // the sockets of the lanes after the first one
	unlaned    error       // why there is one lane although Config.Lanes asks for more
}

func openPair(cfg *Config, netdev *transport.State) (*pair, error) {
	source := laneSource(netdev.MAC, 0, max(1, cfg.Lanes))
	p := &pair{recv: bound{fd: -1}, send: bound{fd: -1}}
	if cfg.Share != nil {
		shared, err := joinGroup(cfg, netdev.Index, source)
		if _, refused := errors.AsType[*cannotShare](err); !refused {
			return shared, err
		}
		p.unshared = err
	}
	var err error
	if p.recv, err = openReceiver(netdev.Index, cfg, nil, 0); err == nil {
		p.send, err = openSender(netdev.Index, cfg.SendBuf, source, max(1, cfg.Lanes), false)
	}
	if err == nil && cfg.Lanes > 1 {
		p.openLanes(cfg, netdev)
	}
	if err != nil {
		if p.unshared != nil {
			err = fmt.Errorf("%w (the port cannot be shared: %w)", err, p.unshared)
		}
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// close ends the membership and closes both sockets; p may be nil.
func (p *pair) close() error {
	if p == nil {
		return nil
	}
	errs := []error{closeLanes(p.more)}
	if p.member != nil {
		errs = append(errs, p.member.close())
	}
	for _, b := range []bound{p.recv, p.send} {
		if b.fd >= 0 {
			errs = append(errs, unix.Close(b.fd))
		}
	}
	return errors.Join(errs...)
}

// intact reports whether no other process has destroyed a socket (SOCK_DESTROY of sock_diag(7)). The
// kernel detaches a destroyed socket from its netdev and from its group. Setting the filter waits
// until a destruction that has begun is complete. The sockets must not be in use.
func (p *pair) intact(index int) bool {
	fds := []int{p.recv.fd, p.send.fd}
	for _, ports := range p.more {
		fds = append(fds, ports.recv.fd, ports.send.fd)
	}
	for _, fd := range fds {
		if refuseAll(fd) != nil {
			return false
		}
		if i, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX); err != nil || i != index {
			return false
		}
	}
	return true
}

// admit makes the receiving socket receive.
func (p *pair) admit() error {
	if p.member != nil {
		return p.member.admit()
	}
	return admitLocal(p.recv.fd, nil)
}

// acquire returns descriptors of the reserved sockets. If there are none yet, or the netdev
// is another one, it first binds new sockets; those of the previous netdev stay bound
// until the new ones are. With fewer lanes than sockets, the kernel would deliver datagrams to
// sockets from which no transport receives, so acquire refuses another number of lanes.
func (r *Reserve) acquire(cfg *Config, netdev *transport.State) (recv, send *socket, p *pair, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken > 0 {
		return nil, nil, nil, fmt.Errorf("another transport of this process uses UDP port %d: %w", Port, hca.ErrBusy)
	}
	lanes := max(1, cfg.Lanes)
	if r.bound != nil && r.index == netdev.Index && r.lanes != lanes {
		return nil, nil, nil, fmt.Errorf("open %d lanes with a Reserve for %d lanes, without closing it first: %w", lanes, r.lanes, hca.ErrInvalid)
	}
	if r.bound != nil && r.index == netdev.Index && !r.bound.intact(r.index) {
		_ = r.bound.close() // first, because the new sockets need the ports
		r.bound = nil
		r.destroyed.Add(1)
	}
	if r.bound == nil || r.index != netdev.Index {
		next, err := openPair(cfg, netdev)
		if err != nil {
			return nil, nil, nil, err
		}
		_ = r.bound.close()
		r.bound, r.index, r.lanes = next, netdev.Index, lanes
	}
	if send, err = r.bound.send.duplicate(); err != nil {
		return nil, nil, nil, err
	}
	if recv, err = r.bound.lend(); err != nil {
		_ = send.file.Close()
		return nil, nil, nil, err
	}
	r.taken++
	return recv, send, r.bound, nil
}

// giveBack ends a transport's use of the sockets. The transport must call it before it
// closes its descriptor of the receiving socket.
func (r *Reserve) giveBack(lent *socket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	if r.bound != nil && r.bound.member != nil {
		return r.bound.member.refuse()
	}
	var err error
	if cerr := lent.raw.Control(func(fd uintptr) { err = refuseAll(int(fd)) }); cerr != nil {
		return cerr
	}
	return err
}

// Close releases the ports. If a transport still uses them, they become free when it is
// closed.
func (r *Reserve) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.bound.close()
	r.bound = nil
	return err
}

// lend duplicates the descriptor of the receiving socket and makes it receive. It drops the
// datagrams in the queue, which arrived before this transport was opened.
func (p *pair) lend() (*socket, error) {
	if err := empty(p.recv.fd); err != nil {
		return nil, err
	}
	dropped, _ := socketDrops(uintptr(p.recv.fd))
	if err := p.admit(); err != nil {
		return nil, err
	}
	lent, err := p.recv.duplicate()
	if err != nil {
		return nil, err
	}
	lent.dropped = dropped
	return lent, nil
}

// duplicate returns another descriptor of the socket.
func (b bound) duplicate() (*socket, error) {
	fd, err := unix.FcntlInt(uintptr(b.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("duplicate a UDP socket", err)
	}
	return own(fd, b.ipv6, b.port)
}

// empty drops all datagrams in the queue of a socket. First it makes the socket refuse
// new ones, which a socket that has just been bound does not do yet: otherwise a flood
// could keep empty busy forever.
func empty(fd int) error {
	if err := refuseAll(fd); err != nil {
		return err
	}
	for {
		_, _, err := unix.Recvfrom(fd, nil, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return os.NewSyscallError("recvfrom", err)
		}
	}
}

// refuseAll makes the kernel drop every datagram that arrives at a socket.
func refuseAll(fd int) error {
	return setFilter(fd, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
}

// admitLocal makes the kernel drop datagrams from this host, unless they come from one of the
// given source ports, and accept all others. Datagrams from this host are multicast and broadcast
// that the kernel loops back, and unicast over the loopback, which the kernel delivers as if
// the netdev with the address had received it. Other processes that send them can use any
// address of the host, and even the port of a daemon, by a socket that is bound to another
// netdev, but only those with CAP_NET_ADMIN can set the mark.
func admitLocal(fd int, ports []uint16) error {
	const (
		ancillary      = 0xfffff000     // SKF_AD_OFF of linux/filter.h
		packetType     = ancillary + 4  // SKF_AD_PKTTYPE
		netdevIndex    = ancillary + 8  // SKF_AD_IFINDEX
		packetMark     = ancillary + 20 // SKF_AD_MARK
		packetLoopback = 5              // PACKET_LOOPBACK of linux/if_packet.h
		loopbackIndex  = 1              // LOOPBACK_IFINDEX of net/flow.h, in each namespace
	)
	n := uint8(len(ports)) // at most numSlots
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: packetType},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: packetLoopback, Jt: 2},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: netdevIndex},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: loopbackIndex, Jf: n + 4},
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: packetMark},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: sharerMark, Jf: n + 1},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 0}, // the UDP source port
	}
	for i, port := range ports {
		filter = append(filter, unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(port), Jt: n - uint8(i)})
	}
	return setFilter(fd, append(filter,
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: math.MaxUint32}))
}

// setFilter attaches a classic BPF program, which replaces the last one.
func setFilter(fd int, filter []unix.SockFilter) error {
	prog := &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	return os.NewSyscallError("setsockopt SO_ATTACH_FILTER", unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, prog))
}
