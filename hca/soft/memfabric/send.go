package memfabric

import (
	"context"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// Lengths of headers, bytes.
const (
	udpLen     = 8
	ipv4Len    = 20
	ipv6Len    = 40
	maxPayload = 65535 - ipv4Len - udpLen
)

// defaultTTL is the TTL with which a packet of TTL 0 arrives.
const defaultTTL = 64

// Send implements transport.Transport. It returns hca.ErrIO once the netdev is gone.
func (p *Port) Send(pkts []transport.Packet) (int, error) {
	now := time.Now()
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	switch {
	case p.isClosed():
		return 0, hca.ErrClosed
	case !p.state.Present:
		return 0, hca.ErrIO
	case !p.writable:
		p.count.blocked++
		return 0, nil
	}
	for i := range pkts {
		p.sendOne(&pkts[i], now)
	}
	return len(pkts), nil
}

func (p *Port) sendOne(pkt *transport.Packet, now time.Time) {
	if why := p.refusal(pkt); why != "" {
		p.fabric.drop(p, p.name, "", pkt, why)
		return
	}
	out := *pkt
	out.SrcPort, out.ID, out.IDKnown = p.srcPort, 0, false
	if out.TTL == 0 {
		out.TTL = defaultTTL
	}
	p.count.txPackets++
	p.count.txBytes += uint64(size(pkt))
	p.fabric.forward(p, &out, now)
}

// refusal returns the reason why the port itself cannot send pkt, or "".
func (p *Port) refusal(pkt *transport.Packet) Drop {
	switch {
	case len(pkt.Vec) > transport.MaxVec || pkt.Src.Is4() != pkt.Dst.Is4() || !pkt.Dst.IsValid():
		return DropInvalid
	case !p.state.Up:
		return DropLinkDown
	case !slices.Contains(p.state.Addrs, pkt.Src):
		return DropBadSource
	case size(pkt) > maxPayload || ipLen(pkt, size(pkt)) > p.state.MTU:
		return DropTooLong
	}
	return ""
}

// ipLen returns the length of the IP packet that carries n bytes.
func ipLen(pkt *transport.Packet, n int) int {
	if pkt.Dst.Is4() {
		return ipv4Len + udpLen + n
	}
	return ipv6Len + udpLen + n
}

// WaitWritable implements transport.Transport.
func (p *Port) WaitWritable(ctx context.Context) error {
	p.fabric.mu.Lock()
	ch := p.mayWrite
	p.fabric.mu.Unlock()
	return p.wait(ctx, ch)
}

// Blocked implements transport.Transport.
func (p *Port) Blocked() uint64 {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.count.blocked
}

// SetWritable makes the wire accept packets again, or makes it full if on is false. While
// it is full, Send accepts nothing, WaitWritable blocks and Blocked grows with each Send,
// as with a socket whose buffer is full.
func (p *Port) SetWritable(on bool) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	if on == p.writable {
		return
	}
	p.writable = on
	if on {
		close(p.mayWrite)
	} else {
		p.mayWrite = make(chan struct{})
	}
}
