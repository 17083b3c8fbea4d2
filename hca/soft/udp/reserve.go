package udp

import (
	"errors"
	"fmt"
	"math"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/soft/udp/share"
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
	bound *ports
	taken int // transports that use them
}

// pair holds the two sockets of a lane. They are not in the runtime's poller, because each datagram
// would wake it.
type pair struct{ recv, send bound }

// noPair is a pair without sockets.
var noPair = pair{bound{fd: -1}, bound{fd: -1}}

// close closes both sockets.
func (p *pair) close() error {
	var errs []error
	for _, b := range []bound{p.recv, p.send} {
		if b.fd >= 0 {
			errs = append(errs, unix.Close(b.fd))
		}
	}
	return errors.Join(errs...)
}

// ports are the sockets of a netdev.
type ports struct {
	lanes    []pair            // at least one
	member   *share.Membership // in the group of daemons that share the port; nil: it is not shared
	unshared error             // why the port is not shared although Config.Share asks for it
	unlaned  error             // why there is one lane although Config.Lanes asks for more
}

func openPorts(cfg *Config, netdev *transport.State) (*ports, error) {
	p := new(ports)
	if cfg.Share != nil {
		member, err := share.Join(cfg.Share, netdev.Index, Port)
		_, refused := errors.AsType[*share.RefusedError](err)
		switch {
		case refused:
			p.unshared = err
		case errors.Is(err, share.ErrTaken):
			return nil, takenOn(netdev.Index)
		case err != nil:
			return nil, err
		}
		p.member = member
	}
	if err := p.open(cfg, netdev); err != nil {
		if p.unshared != nil {
			err = fmt.Errorf("%w (the port cannot be shared: %w)", err, p.unshared)
		}
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// open leaves it to close to undo a partial success.
func (p *ports) open(cfg *Config, netdev *transport.State) error {
	if err := p.openLane(cfg, netdev); err != nil {
		return err
	}
	if p.member != nil {
		first := &p.lanes[0]
		return p.member.Register(cfg.Netdev, first.recv.fd, first.send.port)
	}
	if cfg.Lanes > 1 {
		p.openLanes(cfg, netdev)
	}
	return nil
}

// openLane opens the sockets of the next lane. It leaves it to close to undo a partial success.
func (p *ports) openLane(cfg *Config, netdev *transport.State) (err error) {
	lane, lanes := len(p.lanes), max(1, cfg.Lanes)
	p.lanes = append(p.lanes, noPair)
	sockets := &p.lanes[lane]
	if sockets.recv, err = openReceiver(netdev.Index, cfg, p.member, lane); err != nil {
		return err
	}
	sockets.send, err = openSender(netdev.Index, cfg.SendBuf, laneSource(netdev.MAC, lane, lanes), lanes, p.member != nil)
	return err
}

// close ends the membership and closes all sockets; p may be nil.
func (p *ports) close() error {
	if p == nil {
		return nil
	}
	var errs []error
	if p.member != nil {
		errs = append(errs, p.member.Close())
	}
	for i := range p.lanes {
		errs = append(errs, p.lanes[i].close())
	}
	return errors.Join(errs...)
}

// admit makes the receiving socket of a lane receive.
func (p *ports) admit(lane int) error {
	fd := p.lanes[lane].recv.fd
	switch {
	case lane > 0:
		return admitUnicast(fd)
	case p.member != nil:
		return p.member.Filter(func(ports []uint16) error { return admitLocal(fd, ports) })
	}
	return admitLocal(fd, nil)
}

// lend duplicates the descriptors of the sockets of a lane, and makes it receive. It drops the
// datagrams in the queue, which arrived before this transport was opened.
func (p *ports) lend(lane int) (recv, send *socket, err error) {
	own := &p.lanes[lane]
	if send, err = own.send.duplicate(); err != nil {
		return nil, nil, err
	}
	if recv, err = own.recv.duplicate(); err != nil {
		_ = send.file.Close()
		return nil, nil, err
	}
	if err = empty(own.recv.fd); err == nil {
		recv.dropped, _ = socketDrops(uintptr(own.recv.fd))
		err = p.admit(lane)
	}
	if err != nil {
		return nil, nil, errors.Join(err, send.file.Close(), recv.file.Close())
	}
	return recv, send, nil
}

// acquire returns the reserved sockets, and descriptors of those of the first lane. If there are
// none yet, or the netdev is another one, it first binds new sockets; those of the previous netdev
// stay bound until the new ones are. With fewer lanes than sockets, the kernel would deliver
// datagrams to sockets from which no transport receives, so acquire refuses another number of lanes.
func (r *Reserve) acquire(cfg *Config, netdev *transport.State) (recv, send *socket, p *ports, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.taken > 0 {
		return nil, nil, nil, fmt.Errorf("another transport of this process uses UDP port %d: %w", Port, hca.ErrBusy)
	}
	lanes := max(1, cfg.Lanes)
	if r.bound != nil && r.index == netdev.Index && r.lanes != lanes {
		return nil, nil, nil, fmt.Errorf("open %d lanes with a Reserve for %d lanes, without closing it first: %w", lanes, r.lanes, hca.ErrInvalid)
	}
	if r.bound == nil || r.index != netdev.Index {
		next, err := openPorts(cfg, netdev)
		if err != nil {
			return nil, nil, nil, err
		}
		_ = r.bound.close()
		r.bound, r.index, r.lanes = next, netdev.Index, lanes
	}
	recv, send, err = r.lend(r.bound, 0)
	return recv, send, r.bound, err
}

// acquireLane returns descriptors of the reserved sockets of a lane after the first one.
func (r *Reserve) acquireLane(p *ports, lane int) (recv, send *socket, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bound != p {
		return nil, nil, hca.ErrClosed
	}
	return r.lend(p, lane)
}

// lend returns descriptors of the sockets of a lane, for one transport. r.mu is held.
func (r *Reserve) lend(p *ports, lane int) (recv, send *socket, err error) {
	if recv, send, err = p.lend(lane); err == nil {
		r.taken++
	}
	return recv, send, err
}

// giveBack ends a transport's use of the sockets. The transport must call it before it
// closes its descriptor of the receiving socket.
func (r *Reserve) giveBack(lent *socket) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.taken--
	if r.bound != nil && r.bound.member != nil {
		_ = r.bound.member.Filter(nil)
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
		if err != nil && !errors.Is(err, unix.EINTR) {
			return nil
		}
	}
}

// refuseAll makes the kernel drop every datagram that arrives at a socket.
func refuseAll(fd int) error {
	return setFilter(fd, []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0}})
}

// sharerMark is the mark of the packets of daemons that share the port. Their receiving sockets
// require it of datagrams of this host. A mark is not part of a packet on the wire. It is not
// the mark of an identification (package bpf).
const sharerMark = 0x2001

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
	n := uint8(len(ports)) // at most share.NumSlots
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
