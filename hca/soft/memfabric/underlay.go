package memfabric

import (
	"context"
	"net/netip"
	"slices"

	"ipoibd/hca/soft/transport"
)

// State implements transport.Transport.
func (p *Port) State() transport.State {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.main.readState()
}

// WaitChange implements transport.Transport. A change that was undone before the call also
// counts.
func (p *Port) WaitChange(ctx context.Context) (transport.State, error) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	for p.main.seen == p.main.version || p.isClosed() {
		changed := p.main.changed
		p.fabric.mu.Unlock()
		err := p.wait(ctx, changed)
		p.fabric.mu.Lock()
		if err != nil {
			return transport.State{}, err
		}
	}
	return p.main.readState(), nil
}

// readState returns a copy of the state, and notes that it was read.
func (p *Port) readState() transport.State {
	p.seen = p.version
	s := p.state
	s.Addrs = slices.Clone(s.Addrs)
	return s
}

// change runs edit on a port that is present and wakes the callers of WaitChange.
func (p *Port) change(edit func()) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.isClosed() || !p.state.Present {
		return
	}
	edit()
	p.version++
	close(p.changed)
	p.changed = make(chan struct{})
}

// SetUp sets the link up or down. Setting it down drops the datagrams in flight to it.
func (p *Port) SetUp(on bool) {
	p.change(func() {
		if p.state.Up = on; !on {
			for _, lane := range p.lanes {
				lane.purge(DropPeerDown)
			}
		}
	})
}

// SetMTU changes the MTU of both directions, in bytes of an IP packet.
func (p *Port) SetMTU(mtu int) { p.change(func() { p.state.MTU = mtu }) }

// AddAddr adds an address, at its place in the sorted list.
func (p *Port) AddAddr(a netip.Addr) { p.change(func() { p.addAddr(a) }) }

// DelAddr removes an address.
func (p *Port) DelAddr(a netip.Addr) {
	p.change(func() {
		if i := slices.Index(p.state.Addrs, a); i >= 0 {
			p.state.Addrs = slices.Delete(p.state.Addrs, i, i+1)
			p.fabric.unroute(a, p)
		}
	})
}

// Remove removes the netdev permanently: Send fails, and Recv blocks until Close.
func (p *Port) Remove() {
	p.change(func() {
		p.unplug()
		p.state.Present, p.state.Up, p.state.Addrs = false, false, nil
	})
}

func (p *Port) addAddr(a netip.Addr) {
	if slices.Contains(p.state.Addrs, a) {
		return
	}
	p.state.Addrs = append(p.state.Addrs, a)
	transport.SortAddrs(p.state.Addrs)
	p.fabric.route(a, p)
}
