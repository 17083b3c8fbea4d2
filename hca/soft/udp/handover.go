package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
)

// ErrNotBound means that a Reserve has no sockets.
var ErrNotBound = errors.New("there are no sockets")

// Handed describes the sockets of a Reserve that another process continues. Its descriptors are the
// receiving and the sending socket of each lane.
type Handed struct {
	Index   int // of the netdev
	Asked   int // lanes that were asked for
	Lanes   []HandedLane
	Unlaned string // why there is one lane, although more were asked for
}

// HandedLane describes the sockets of a lane.
type HandedLane struct {
	IPv6   bool   // both sockets carry both families
	Source uint16 // port of the sending socket
	Drops  uint32 // the kernel's count of drops at the receiving socket, as last counted
}

// Drops returns the kernel's count of drops at the receiving socket that the last Counters include.
func (t *Transport) Drops() uint32 {
	t.rx.counts.mu.Lock()
	defer t.rx.counts.mu.Unlock()
	return uint32(t.rx.counts.overflow)
}

// HandOver returns what another process needs to continue the sockets, with duplicates of the
// descriptors, which the caller closes. Drops are those of the transports of the lanes; nil: there were
// none since Inherit. The transports must not receive any more.
func (r *Reserve) HandOver(drops []uint32) (h Handed, fds []int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.bound
	if drops == nil {
		drops = r.drops
	}
	switch {
	case p == nil:
		return h, nil, ErrNotBound
	case len(drops) != len(p.lanes):
		return h, nil, fmt.Errorf("hand over the sockets of %d lanes, there are %d: %w", len(drops), len(p.lanes), hca.ErrInvalid)
	}
	defer func() {
		if err != nil {
			kernel.CloseAll(fds)
			fds = nil
		}
	}()
	h = Handed{Index: r.index, Asked: r.lanes, Unlaned: textOf(p.unlaned)}
	for i, lane := range p.lanes {
		h.Lanes = append(h.Lanes, HandedLane{IPv6: lane.recv.ipv6 && lane.send.ipv6, Source: lane.send.port, Drops: drops[i]})
		if lane.recv.ipv6 != lane.send.ipv6 {
			return h, fds, errors.New("the sockets of a lane carry different families")
		}
		for _, b := range []bound{lane.recv, lane.send} {
			fd, err := kernel.DuplicateFD(b.fd)
			if err != nil {
				return h, fds, fmt.Errorf("a UDP socket: %w", err)
			}
			fds = append(fds, fd)
		}
	}
	return h, fds, nil
}

// GiveUp leaves the sockets to the process that continues them: they receive also after the
// transports of this one have been closed.
func (r *Reserve) GiveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = true
}

// Inherit makes an unused Reserve continue the sockets of another process's. It owns the
// descriptors from then on, also after an error. The first transports of the Reserve keep the
// datagrams that wait in the sockets.
func (r *Reserve) Inherit(h Handed, fds []int) error {
	p, err := inheritPorts(h, fds)
	if err != nil {
		return fmt.Errorf("take over the UDP sockets: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bound, r.index, r.lanes = p, h.Index, h.Asked
	for _, lane := range h.Lanes {
		r.drops = append(r.drops, lane.Drops)
	}
	return nil
}

func inheritPorts(h Handed, fds []int) (p *ports, err error) {
	if len(h.Lanes) < 1 || len(h.Lanes) > transport.MaxLanes || len(fds) != 2*len(h.Lanes) {
		err = fmt.Errorf("%d descriptors for %d lanes", len(fds), len(h.Lanes))
	}
	for i, lane := range h.Lanes {
		if err == nil {
			err = errors.Join(checkSocket(fds[2*i], h.Index, lane.IPv6, Port), checkSocket(fds[2*i+1], h.Index, lane.IPv6, lane.Source))
		}
	}
	if err != nil {
		kernel.CloseAll(fds)
		return nil, err
	}
	p = &ports{unlaned: errorOf(h.Unlaned)}
	for i, lane := range h.Lanes {
		p.lanes = append(p.lanes, pair{bound{fds[2*i], lane.IPv6, Port}, bound{fds[2*i+1], lane.IPv6, lane.Source}})
	}
	return p, nil
}

// checkSocket checks that a descriptor is a UDP socket of a family, bound to a port on a netdev.
func checkSocket(fd, index int, ipv6 bool, port uint16) error {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	for _, o := range []option{
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_UDP}, {unix.SOL_SOCKET, unix.SO_DOMAIN, family}, {unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index},
	} {
		if got, err := unix.GetsockoptInt(fd, o.level, o.name); err != nil || got != o.value {
			return errors.Join(fmt.Errorf("socket option %d is %d, want %d", o.name, got, o.value), err)
		}
	}
	var got int
	switch local, err := unix.Getsockname(fd); a := local.(type) {
	case *unix.SockaddrInet6:
		got = a.Port
	case *unix.SockaddrInet4:
		got = a.Port
	default:
		return os.NewSyscallError("getsockname", err)
	}
	if got != int(port) {
		return fmt.Errorf("a socket is bound to port %d, want %d", got, port)
	}
	return nil
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
