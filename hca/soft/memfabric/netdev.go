package memfabric

import (
	"context"
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// netdev is the simulated underlay of its ports. The fabric's mutex guards its fields.
type netdev struct {
	fabric *Fabric
	name   string  // on the fabric; constant
	ports  []*Port // constant
	open   int     // ports that are not closed

	state   transport.State
	monitor transport.Monitor // state, for State and WaitChange; it has its own mutex

	members map[netip.Addr]int // joins of each group

	writable bool
	mayWrite chan struct{} // closed while writable
}

func (f *Fabric) newNetdev(name string, mtu int) *netdev {
	index := f.attached + 1
	d := &netdev{
		fabric: f, name: name,
		members:  make(map[netip.Addr]int),
		writable: true, mayWrite: make(chan struct{}),
	}
	close(d.mayWrite)
	d.state = transport.State{Name: name, Index: index, Present: true, Up: true, MTU: mtu}
	d.state.MAC = [6]byte{0x02, 0, 0, 0, byte(index >> 8), byte(index)}
	return d
}

// lane returns the port that receives a datagram.
func (d *netdev) lane(pkt *transport.Packet) *Port {
	if pkt.Dst.IsMulticast() {
		return d.ports[0]
	}
	return d.ports[int(pkt.SrcPort)%len(d.ports)]
}

// unplug removes the addresses and groups from the fabric, and drops the datagrams in flight.
func (d *netdev) unplug() {
	for _, a := range d.state.Addrs {
		d.fabric.unroute(a, d)
	}
	for g := range d.members {
		d.fabric.unroute(g, d)
	}
	clear(d.members)
	d.purge(DropUnreadable)
}

func (d *netdev) purge(why Drop) {
	for _, p := range d.ports {
		p.purge(why)
	}
}

func (d *netdev) addAddr(a netip.Addr) {
	if slices.Contains(d.state.Addrs, a) {
		return
	}
	d.state.Addrs = append(d.state.Addrs, a)
	transport.SortAddrs(d.state.Addrs)
	d.fabric.route(a, d)
}

// change runs edit on the netdev of a port if it is present and in use, and wakes the callers of
// WaitChange.
func (p *Port) change(edit func(d *netdev)) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	d := p.netdev
	if d.open == 0 || !d.state.Present {
		return
	}
	edit(d)
	d.monitor.Set(d.state)
}

// SetUp sets the link up or down. Setting it down drops the datagrams in flight to it.
func (p *Port) SetUp(on bool) {
	p.change(func(d *netdev) {
		if d.state.Up = on; !on {
			d.purge(DropPeerDown)
		}
	})
}

// SetMTU changes the MTU of both directions, in bytes of an IP packet.
func (p *Port) SetMTU(mtu int) { p.change(func(d *netdev) { d.state.MTU = mtu }) }

// AddAddr adds an address, at its place in the sorted list.
func (p *Port) AddAddr(a netip.Addr) { p.change(func(d *netdev) { d.addAddr(a) }) }

// DelAddr removes an address.
func (p *Port) DelAddr(a netip.Addr) {
	p.change(func(d *netdev) {
		if i := slices.Index(d.state.Addrs, a); i >= 0 {
			d.state.Addrs = slices.Delete(d.state.Addrs, i, i+1)
			d.fabric.unroute(a, d)
		}
	})
}

// Remove removes the netdev permanently: Send fails, and Recv blocks until Close.
func (p *Port) Remove() {
	p.change(func(d *netdev) {
		d.unplug()
		d.state.Present, d.state.Up, d.state.Addrs = false, false, nil
	})
}

// SetWritable makes the wire accept packets again, or makes it full if on is false. While
// it is full, Send accepts nothing, WaitWritable blocks and Blocked grows with each Send,
// as with sockets whose buffers are full.
func (p *Port) SetWritable(on bool) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	d := p.netdev
	if on == d.writable {
		return
	}
	d.writable = on
	if on {
		close(d.mayWrite)
	} else {
		d.mayWrite = make(chan struct{})
	}
}

// State implements transport.Transport.
func (p *Port) State() transport.State { return p.netdev.monitor.State() }

// WaitChange implements transport.Transport.
func (p *Port) WaitChange(ctx context.Context) (transport.State, error) {
	return p.netdev.monitor.WaitChange(ctx, p.closed)
}

// Join implements transport.Transport. It returns hca.ErrInvalid for an address that is
// not a group, and hca.ErrIO once the netdev is gone.
func (p *Port) Join(group netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	d := p.netdev
	switch {
	case p.isClosed():
		return hca.ErrClosed
	case !group.IsMulticast() || group.Is4In6():
		return hca.ErrInvalid
	case !d.state.Present:
		return hca.ErrIO
	}
	if d.members[group]++; d.members[group] == 1 {
		d.fabric.route(group, d)
	}
	return nil
}

// Leave implements transport.Transport. It returns hca.ErrInvalid for a group that was not
// joined.
func (p *Port) Leave(group netip.Addr) error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	d := p.netdev
	switch {
	case p.isClosed():
		return hca.ErrClosed
	case d.members[group] == 0:
		return hca.ErrInvalid
	}
	if d.members[group]--; d.members[group] == 0 {
		delete(d.members, group)
		d.fabric.unroute(group, d)
	}
	return nil
}
