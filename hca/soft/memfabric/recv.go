package memfabric

import (
	"container/heap"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// accept queues a copy of a packet until it is due, or drops the packet.
func (p *Port) accept(from string, pkt *transport.Packet, due time.Time) {
	f := p.fabric
	if why := p.unwelcome(pkt); why != "" {
		f.drop(p, from, p.netdev.name, pkt, why)
		return
	}
	f.show(from, p.netdev.name, pkt, "")
	p.enqueue(pkt, due)
}

// unwelcome returns the reason why a packet cannot enter the receive queue, or "".
func (p *Port) unwelcome(pkt *transport.Packet) Drop {
	switch {
	case p.isClosed():
		return DropUnreadable
	case !p.netdev.state.Up:
		return DropPeerDown
	case ipLen(pkt, len(pkt.Data)) > p.netdev.state.MTU:
		return DropRxTooLong
	case len(p.queue) >= p.fabric.queue:
		return DropOverflow
	}
	return ""
}

func (p *Port) enqueue(pkt *transport.Packet, due time.Time) {
	heap.Push(&p.queue, p.fabric.newDatagram(pkt, due))
	select {
	case p.arrived <- struct{}{}:
	default:
	}
}

// Inject puts a received datagram into the port's queue unchanged, even if no sender could
// have sent it. It copies Data.
func (p *Port) Inject(pkt transport.Packet) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if p.isClosed() {
		return
	}
	p.enqueue(&pkt, time.Now())
}

// Recv implements transport.Transport. After Remove it blocks until Close.
func (p *Port) Recv(pkts []transport.Packet) (int, error) {
	for {
		n, err := p.recvDue(pkts, time.Now())
		if n > 0 || err != nil {
			return n, err
		}
		select {
		case <-p.arrived:
		case <-p.timer.C:
		case <-p.closed:
		case <-p.interrupted:
			return 0, nil
		}
	}
}

// Interrupt implements transport.Transport.
func (p *Port) Interrupt() {
	select {
	case p.interrupted <- struct{}{}:
	default:
	}
}

// recvDue returns the datagrams that are due, or sets the timer to the time when the first
// one is due.
func (p *Port) recvDue(pkts []transport.Packet, now time.Time) (int, error) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	p.fabric.free = append(p.fabric.free, p.lent...) // of the last Recv
	clear(p.lent)
	p.lent = p.lent[:0]
	if p.isClosed() {
		return 0, hca.ErrClosed
	}
	for len(p.lent) < len(pkts) && len(p.queue) > 0 && !p.queue[0].due.After(now) {
		d := heap.Pop(&p.queue).(*datagram)
		pkts[len(p.lent)] = d.pkt
		p.lent = append(p.lent, d)
		p.count.rxPackets++
		p.count.rxBytes += uint64(len(d.pkt.Data))
	}
	if len(p.queue) > 0 && len(p.lent) == 0 {
		p.timer.Reset(p.queue[0].due.Sub(now))
	}
	return len(p.lent), nil
}

// purge drops all queued datagrams.
func (p *Port) purge(why Drop) {
	for _, d := range p.queue {
		p.fabric.drop(p, "", p.netdev.name, &d.pkt, why)
	}
	p.fabric.free = append(p.fabric.free, p.queue...)
	clear(p.queue)
	p.queue = p.queue[:0]
}
