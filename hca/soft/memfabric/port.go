package memfabric

import (
	"context"
	"net/netip"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Port is one attachment to a fabric: a [transport.Transport] and its simulated underlay.
// The fabric's mutex guards all its fields.
type Port struct {
	fabric  *Fabric
	name    string // on the fabric; constant
	srcPort uint16

	main  *Port   // represents the underlay: only its state and its groups count
	lanes []*Port // of main; main itself is the first one

	state   transport.State
	version uint64        // of state
	seen    uint64        // version returned last by State or WaitChange
	changed chan struct{} // closed and replaced by each new version

	limits transport.Limits
	cut    [][]byte // gather list of one datagram of a train

	writable bool
	mayWrite chan struct{} // closed while writable

	members map[netip.Addr]int // joins of each group

	queue   queue
	lent    []*datagram   // returned by the last Recv
	arrived chan struct{} // gets a token after an arrival
	timer   *time.Timer   // of Recv, which waits until the first datagram is due

	interrupted chan struct{} // Interrupt sends a token to it

	closed chan struct{}
	count  counters
}

var _ transport.Transport = (*Port)(nil)

func (f *Fabric) newPort(name string, mtu int) *Port {
	f.attached++
	index := f.attached
	p := &Port{
		fabric: f, name: name, srcPort: firstPort + uint16(index-1)%(1<<16-firstPort),
		version: 1, changed: make(chan struct{}),
		limits: defaultLimits, writable: true, mayWrite: make(chan struct{}),
		members: make(map[netip.Addr]int),
		arrived: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
		interrupted: make(chan struct{}, 1),
		closed:      make(chan struct{}), count: counters{drops: make(map[Drop]uint64, len(drops))},
	}
	p.timer.Stop()
	close(p.mayWrite)
	p.state = transport.State{Name: name, Index: index, Present: true, Up: true, MTU: mtu}
	p.state.MAC = [6]byte{0x02, 0, 0, 0, byte(index >> 8), byte(index)}
	p.main, p.lanes = p, []*Port{p}
	return p
}

// lane returns the port that receives a datagram to the underlay of p.
func (p *Port) lane(pkt *transport.Packet) *Port {
	if pkt.Dst.IsMulticast() {
		return p
	}
	return p.lanes[int(pkt.SrcPort)%len(p.lanes)]
}

// SrcPort implements transport.Transport.
func (p *Port) SrcPort() uint16 { return p.srcPort }

// Join implements transport.Transport. It returns hca.ErrInvalid for an address that is
// not a group, and hca.ErrIO once the netdev is gone.
func (p *Port) Join(group netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	switch {
	case p.isClosed():
		return hca.ErrClosed
	case !group.IsMulticast() || group.Is4In6():
		return hca.ErrInvalid
	case !p.main.state.Present:
		return hca.ErrIO
	}
	if p.members[group]++; p.members[group] == 1 {
		p.fabric.route(group, p)
	}
	return nil
}

// Leave implements transport.Transport. It returns hca.ErrInvalid for a group that was not
// joined.
func (p *Port) Leave(group netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	switch {
	case p.isClosed():
		return hca.ErrClosed
	case p.members[group] == 0:
		return hca.ErrInvalid
	}
	if p.members[group]--; p.members[group] == 0 {
		delete(p.members, group)
		p.fabric.unroute(group, p)
	}
	return nil
}

// Counters implements transport.Transport.
func (p *Port) Counters() []hca.Counter {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.count.list()
}

// Close implements transport.Transport; the name may be attached again.
func (p *Port) Close() error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.isClosed() {
		return nil
	}
	close(p.closed)
	p.timer.Stop()
	if p == p.main {
		p.unplug()
		delete(p.fabric.ports, p.name)
	}
	p.purge(DropUnreadable)
	return nil
}

func (p *Port) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

// unplug removes the port's addresses and groups from the fabric, and drops the datagrams
// in flight to it.
func (p *Port) unplug() {
	for _, a := range p.state.Addrs {
		p.fabric.unroute(a, p)
	}
	for g := range p.members {
		p.fabric.unroute(g, p)
	}
	clear(p.members)
	for _, lane := range p.lanes {
		lane.purge(DropUnreadable)
	}
}

// wait blocks until ch is closed, ctx ends or the port is closed.
func (p *Port) wait(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-p.closed:
		return hca.ErrClosed
	default:
	}
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-p.closed:
		return hca.ErrClosed
	}
}
