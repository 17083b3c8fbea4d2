package udp

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// handedReserve is the part "sockets" of a capsule: the sockets of a Reserve. Its descriptors are the receiving and the
// sending socket of each lane.
type handedReserve struct {
	Index   int          `json:"ifindex"` // of the netdev
	Asked   int          `json:"lanes_asked"`
	Lanes   []handedLane `json:"lanes"`
	OneLane string       `json:"one_lane"` // why there is one lane, although more were asked for
}

// handedLane describes the sockets of a lane.
type handedLane struct {
	IPv6   bool   `json:"ipv6"`   // both sockets carry both families
	Source uint16 `json:"source"` // port of the sending socket
	Drops  uint32 `json:"drops"`  // the kernel's count of drops at the receiving socket, as last counted
}

// Drops returns the kernel's count of drops at the receiving socket that the last Counters include.
func (t *Transport) Drops() uint32 {
	t.rx.counts.mu.Lock()
	defer t.rx.counts.mu.Unlock()
	return uint32(t.rx.counts.overflow)
}

// Export puts what another process needs to continue the sockets into a capsule, as the part "sockets", if there are
// any. Drops are those of the transports of the lanes; nil: there were none since Import. The transports must not
// receive any more.
func (r *Reserve) Export(w *capsule.Writer, drops []uint32) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.bound
	if drops == nil {
		drops = r.drops
	}
	switch {
	case p == nil:
		return nil
	case len(drops) != len(p.lanes):
		return fmt.Errorf("hand over the sockets of %d lanes, there are %d: %w",
			len(drops), len(p.lanes), hca.ErrInvalid)
	}
	h := handedReserve{Index: r.index, Asked: r.lanes, OneLane: textOf(p.unlaned)}
	var fds []int
	for i, lane := range p.lanes {
		both := lane.recv.ipv6 && lane.send.ipv6
		h.Lanes = append(h.Lanes, handedLane{IPv6: both, Source: lane.send.port, Drops: drops[i]})
		if lane.recv.ipv6 != lane.send.ipv6 {
			return errors.New("the sockets of a lane carry different families")
		}
		fds = append(fds, lane.recv.fd, lane.send.fd)
	}
	w.PutFDs("sockets", h, fds...)
	return nil
}

// GiveUp leaves the sockets to the process that continues them: they receive also after the
// transports of this one have been closed.
func (r *Reserve) GiveUp() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.given = true
}

// Import makes an unused Reserve continue the sockets of another process, if there are any. The first transports of the
// Reserve keep the datagrams that wait in the sockets.
func (r *Reserve) Import(from *capsule.Reader) error {
	var h handedReserve
	fds, err := from.Take("sockets", &h)
	if errors.Is(err, capsule.ErrMissing) {
		return nil
	}
	if err == nil {
		err = h.check(fds)
	}
	if err != nil {
		kernel.CloseAll(fds)
		return fmt.Errorf("take over the UDP sockets: %w", err)
	}
	p := &ports{unlaned: errorOf(h.OneLane)}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, lane := range h.Lanes {
		p.lanes = append(p.lanes, pair{bound{fds[2*i], lane.IPv6, Port}, bound{fds[2*i+1], lane.IPv6, lane.Source}})
		r.drops = append(r.drops, lane.Drops)
	}
	r.bound, r.index, r.lanes = p, h.Index, h.Asked
	return nil
}

// check checks that the descriptors are the sockets that were described.
func (h *handedReserve) check(fds []int) error {
	if len(h.Lanes) < 1 || len(h.Lanes) > transport.MaxLanes || len(fds) != 2*len(h.Lanes) {
		return fmt.Errorf("%d descriptors for %d lanes", len(fds), len(h.Lanes))
	}
	for i, lane := range h.Lanes {
		for j, port := range []uint16{Port, lane.Source} {
			if err := checkSocket(fds[2*i+j], h.Index, lane.IPv6, port); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkSocket checks that a descriptor is a UDP socket of a family, bound to a port on a netdev.
func checkSocket(fd, index int, ipv6 bool, port uint16) error {
	family := unix.AF_INET
	if ipv6 {
		family = unix.AF_INET6
	}
	for _, o := range []option{
		{unix.SOL_SOCKET, unix.SO_PROTOCOL, unix.IPPROTO_UDP},
		{unix.SOL_SOCKET, unix.SO_DOMAIN, family},
		{unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index},
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
