package memfabric

import (
	"context"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Port is a [transport.Transport] on a netdev of a fabric. It has its own source port, receive
// queue, limits and counters. All else is the netdev's: the link, the MTU, the addresses, the
// groups, and whether the wire is full. The fabric's mutex guards all fields.
type Port struct {
	fabric  *Fabric
	netdev  *netdev
	srcPort uint16

	limits transport.Limits

	queue   queue
	lent    []*datagram   // returned by the last Recv
	arrived chan struct{} // gets a token after an arrival
	timer   *time.Timer   // of Recv, which waits until the first datagram is due

	interrupted chan struct{} // Interrupt sends a token to it

	closed chan struct{}
	count  counters
}

var _ transport.Transport = (*Port)(nil)

// addPort adds a port to a netdev.
func (d *netdev) addPort() {
	p := &Port{
		fabric: d.fabric, netdev: d, srcPort: firstPort + uint16(d.fabric.attached)%(1<<16-firstPort),
		limits:  defaultLimits,
		arrived: make(chan struct{}, 1), timer: time.NewTimer(time.Hour),
		interrupted: make(chan struct{}, 1),
		closed:      make(chan struct{}), count: counters{drops: make(map[Drop]uint64, len(drops))},
	}
	p.timer.Stop()
	d.fabric.attached++
	d.ports = append(d.ports, p)
	d.open++
}

// SrcPort implements transport.Transport.
func (p *Port) SrcPort() uint16 { return p.srcPort }

// Counters implements transport.Transport.
func (p *Port) Counters() []hca.Counter {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.count.list()
}

// Close implements transport.Transport. Once all ports of the netdev are closed, its name may be
// attached again.
func (p *Port) Close() error {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.isClosed() {
		return nil
	}
	close(p.closed)
	p.timer.Stop()
	p.purge(DropUnreadable)
	d := p.netdev
	if d.open--; d.open == 0 {
		d.unplug()
		delete(d.fabric.netdevs, d.name)
	}
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
