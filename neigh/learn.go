package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// hear returns the peer at e, which has just claimed ip; an invalid ip claims
// nothing. A peer that is not known yet is one of these:
//
//	ip is bound to another QPN of the GID | that peer came back: QPN changed, MAC kept
//	else                                  | a new peer
//
// So is one that is known, but has never claimed an address nor been sent to: a
// restarted peer may probe before it claims.
func (t *Table) hear(e endpoint, ip netip.Addr) *peer {
	p, owner := t.peers.byEndpoint[e], t.peers.byIP[ip]
	if owner != nil && owner != p && owner.gid == e.gid && (p == nil || p.blank()) {
		t.comeBack(owner, p, e)
		p = owner
	}
	if p == nil {
		p = t.meet(e)
	}
	t.peers.touch(p, t.now)
	t.speaks(p)
	if isUnicast(ip) {
		t.claim(ip, p)
	}
	return p
}

// blank reports whether nothing depends on p.
func (p *peer) blank() bool {
	return !p.claimed && !p.used && p.handle.state == handleNone
}

// comeBack moves p to the endpoint e, whose blank entry (or nil) goes away. The data
// path gets the new QPN at once, unless many peers have come back in this second: then
// two queue pairs may be claiming one address in turns.
func (t *Table) comeBack(p, blank *peer, e endpoint) {
	if blank != nil {
		t.forget(blank)
	}
	t.peers.setQPN(p, e.qpn)
	t.answers(p)
	if t.returns.take(t.now, maxUrgentReturns) {
		t.pub.urgent()
	} else {
		t.pub.changeBy(t.now.Add(latePause))
	}
}

// meet adds a peer, making room for it.
func (t *Table) meet(e endpoint) *peer {
	t.makeRoomAt(e.gid)
	t.makeRoomHeard()
	p := t.peers.add(e, freeMAC(e.gid, e.qpn, t.macTaken), t.now)
	if !p.plain {
		t.pub.change()
	}
	return p
}

// macTaken reports whether a new peer must not have this MAC.
func (t *Table) macTaken(m ipoib.MAC) bool {
	return t.peers.byMAC[m] != nil || t.mac.is(m)
}

// claim binds ip to p. The latest claim holds, as with ARP itself; an address
// learnt of the host that turns up elsewhere has moved away.
func (t *Table) claim(ip netip.Addr, p *peer) {
	t.hosts.forget(ip)
	t.peers.bind(ip, p)
}

// isUnicast reports whether ip can be the address of a node.
func isUnicast(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() &&
		ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
