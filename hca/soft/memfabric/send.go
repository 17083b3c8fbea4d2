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

// defaultLimits are Linux's.
var defaultLimits = transport.Limits{MaxSegs: transport.MaxSegs, MaxBytes: maxPayload}

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
	case !p.netdev.state.Present:
		return 0, hca.ErrIO
	case !p.netdev.writable:
		p.count.blocked++
		return 0, nil
	}
	for i := range pkts {
		if !p.limits.Allow(&pkts[i]) {
			return i, transport.ErrLimits
		}
		p.sendOne(&pkts[i], now)
	}
	return len(pkts), nil
}

// sendOne sends the datagrams of a packet one by one.
func (p *Port) sendOne(pkt *transport.Packet, now time.Time) {
	why := p.refusal(pkt)
	out := *pkt
	out.SrcPort, out.Segs, out.SegSize = p.srcPort, 0, 0
	if out.TTL == 0 {
		out.TTL = defaultTTL
	}
	rest := pkt.Data
	for k := range pkt.Datagrams() {
		if pkt.Segs > 1 {
			out.Data = rest[:min(pkt.SegSize, len(rest))]
			rest = rest[len(out.Data):]
		}
		out.ID, out.IDKnown = 0, p.fabric.showIDs
		if pkt.Dst.Is4() {
			out.ID = uint16(k)
		}
		if why != "" {
			p.fabric.drop(p, p.netdev.name, "", &out, why)
			continue
		}
		p.count.txPackets++
		p.count.txBytes += uint64(len(out.Data))
		p.fabric.forward(p, &out, now)
	}
}

// refusal returns the reason why the port itself cannot send pkt, or "".
func (p *Port) refusal(pkt *transport.Packet) Drop {
	longest := len(pkt.Data)
	if pkt.Segs > 1 {
		longest = pkt.SegSize
	}
	switch {
	case !pkt.Valid():
		return DropInvalid
	case !p.netdev.state.Up:
		return DropLinkDown
	case !slices.Contains(p.netdev.state.Addrs, pkt.Src):
		return DropBadSource
	case longest > maxPayload || ipLen(pkt, longest) > p.netdev.state.MTU:
		return DropTooLong
	}
	return ""
}

// Limits implements transport.Transport.
func (p *Port) Limits() transport.Limits {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.limits
}

// SetLimits changes the limits of trains. A test lowers them to simulate a kernel that no longer
// cuts trains.
func (p *Port) SetLimits(l transport.Limits) {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	p.limits = l
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
	ch := p.netdev.mayWrite
	p.fabric.mu.Unlock()
	return p.wait(ctx, ch)
}

// Blocked implements transport.Transport.
func (p *Port) Blocked() uint64 {
	p.fabric.mu.Lock()
	defer p.fabric.mu.Unlock()
	return p.count.blocked
}
