package linktest

import (
	"cmp"
	"context"
	"net/netip"
	"slices"

	"ipoibd/link"
)

// Host is the other side of a device: `ip` and the IP stack.
type Host interface {
	// SetUp is `ip link set up` or `down`.
	SetUp(up bool)
	// SetMTU is `ip link set mtu`.
	SetMTU(mtu int)
	// AddAddr and DelAddr are `ip address add` and `del`.
	AddAddr(p netip.Prefix)
	DelAddr(p netip.Prefix)
	// SetMAC is `ip link set address`.
	SetMAC(mac [6]byte)
	// Attach attaches a queue of another process.
	Attach() Queue
	// Delete is `ip link delete`.
	Delete()
	// Send transmits an Ethernet frame.
	Send(frame []byte)
	// SendOffloaded transmits an Ethernet frame with a virtio header that requests a
	// checksum or segmentation, as packet(7) does with PACKET_VNET_HDR.
	SendOffloaded(header [link.HeaderLen]byte, frame []byte)
	// Recv returns the next Ethernet frame of the experimental EtherType that
	// the device wrote, without virtio header, or ctx's error.
	Recv(ctx context.Context) ([]byte, error)
}

// Queue is a queue of another process, with the changes that the process can make
// through it.
type Queue interface {
	SetHeaderLen(n int)
	SetPersistent(on bool)
	SetCarrier(on bool)
	SetOffloads(o link.Offloads)
	Detach()
}

// SetUp implements [Host].
func (f *Fake) SetUp(up bool) {
	f.alter(func(s *link.State) {
		if s.Up && !up {
			s.Downs++
		}
		s.Up = up
	})
}

// SetMTU implements [Host].
func (f *Fake) SetMTU(mtu int) { f.alter(func(s *link.State) { s.MTU = mtu }) }

// SetMAC implements [Host].
func (f *Fake) SetMAC(mac [6]byte) { f.alter(func(s *link.State) { s.MAC = mac }) }

// Attach implements [Host].
func (f *Fake) Attach() Queue {
	f.alter(func(s *link.State) { s.Foreign++ })
	return fakeQueue{f}
}

// fakeQueue is a queue of another process.
type fakeQueue struct{ of *Fake }

func (q fakeQueue) SetHeaderLen(n int) {
	q.of.alter(func(*link.State) { q.of.now.headerLen = n })
}

func (q fakeQueue) SetPersistent(on bool) {
	q.of.alter(func(*link.State) { q.of.now.persistent = on })
}

func (q fakeQueue) SetCarrier(on bool) {
	q.of.alter(func(*link.State) { q.of.now.carrier = on })
}

func (q fakeQueue) SetOffloads(o link.Offloads) {
	q.of.alter(func(*link.State) { q.of.now.offloads = o })
}

func (q fakeQueue) Detach() { q.of.alter(func(s *link.State) { s.Foreign-- }) }

// SetMaster is `ip link set master`, with the index of a bridge and its addresses. Index 0
// removes the interface from the bridge.
func (f *Fake) SetMaster(index int, addrs ...netip.Prefix) {
	f.alter(func(s *link.State) { s.Master, s.Above = index, slices.Clone(addrs) })
}

// AddAddr implements [Host].
func (f *Fake) AddAddr(p netip.Prefix) {
	f.alter(func(s *link.State) {
		s.Addrs = append(s.Addrs, p)
		slices.SortFunc(s.Addrs, func(a, b netip.Prefix) int {
			return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
		})
	})
}

// DelAddr implements [Host].
func (f *Fake) DelAddr(p netip.Prefix) {
	f.alter(func(s *link.State) {
		s.Addrs = slices.DeleteFunc(s.Addrs, func(q netip.Prefix) bool { return p == q })
	})
}

// Join makes the host a member of a multicast group, as the socket option IP_ADD_MEMBERSHIP does. The fake sends no
// report.
func (f *Fake) Join(group netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups = append(f.groups, group)
}

// Leave ends the membership in a group.
func (f *Fake) Leave(group netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.groups = slices.DeleteFunc(f.groups, func(g netip.Addr) bool { return g == group })
}

// Delete implements [Host].
func (f *Fake) Delete() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if isDone(f.gone) {
		return
	}
	close(f.gone)
	f.state = link.State{}
	f.changed()
}

// MoveAway moves the interface to a network namespace that its owner may not enter. Its
// state is no longer known, but it continues to work.
func (f *Fake) MoveAway() { f.alter(func(s *link.State) { *s = link.State{} }) }

// alter changes and publishes the state of an interface that is present.
func (f *Fake) alter(change func(*link.State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !isDone(f.gone) {
		change(&f.state)
		f.changed()
	}
}

// Send implements [Host]. It copies the frame, which is lost if there is no carrier.
func (f *Fake) Send(frame []byte) { f.SendOffloaded([link.HeaderLen]byte{}, frame) }

// gsoOffloads are the offloads by gso_type (linux/virtio_net.h).
var gsoOffloads = map[byte]link.Offloads{1: link.OffloadTSO4, 4: link.OffloadTSO6, 5: link.OffloadUSO}

// SendOffloaded implements [Host]. A kernel does the requested work itself if the device does
// not; the fake loses the frame instead.
func (f *Fake) SendOffloaded(header [link.HeaderLen]byte, frame []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	needs := gsoOffloads[header[1]]
	if header[0]&1 != 0 { // VIRTIO_NET_HDR_F_NEEDS_CSUM
		needs |= link.OffloadCsum
	}
	if !f.state.Carrier || needs&^f.now.offloads != 0 {
		f.kernel.TxDropped++
		return
	}
	select {
	case f.fromHost <- append(header[:], frame...):
		f.kernel.TxPackets++
		f.kernel.TxBytes += uint64(len(frame))
	default:
		f.kernel.TxDropped++
	}
}

// Recv implements [Host]. Unlike other hosts it returns frames of every EtherType.
func (f *Fake) Recv(ctx context.Context) ([]byte, error) {
	select {
	case frame := <-f.toHost:
		return frame, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}
