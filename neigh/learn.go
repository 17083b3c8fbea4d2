package neigh

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// hear returns the peer at e, which has just claimed ip; an invalid ip claims
// nothing. A peer that is not known yet is one of these:
//
//	ip is bound to another QPN of the GID | that peer came back: QPN changed, MAC kept
//	a forgotten peer had ip or e          | that peer came back: a new entry, the old MAC
//	else                                  | a new peer
//
// So is one that is known, but has never claimed an address nor been sent to: a
// restarted peer may probe before it claims.
func (t *Table) hear(e endpoint, ip netip.Addr) *peer {
	p, owner := t.peers.byEndpoint[e], t.peers.byIP[ip]
	if p != nil && p.blank() &&
		(owner.isAt(e.gid) || t.past.byIP[ip].isAt(e.gid) || t.resolver.denies(p.mac, ip)) {
		t.forget(p)
		t.past.remove(p) // the same interface comes back here
		p = nil
	}
	switch {
	case p != nil:
	case owner.isAt(e.gid):
		p = owner
		t.comeBack(p, e)
	default:
		p = t.meet(e, ip)
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

// isAt reports whether there is a peer p, and its GID is gid.
func (p *peer) isAt(gid hca.GID) bool { return p != nil && p.gid == gid }

// comeBack moves p to the endpoint e, where no peer is. The data path gets the new QPN at
// once, unless many peers have come back in this second: then two queue pairs may be
// claiming one address in turns.
func (t *Table) comeBack(p *peer, e endpoint) {
	t.peers.setQPN(p, e.qpn)
	t.answers(p)
	if t.returns.take(t.now, maxUrgentReturns) {
		t.pub.urgent()
	} else {
		t.pub.changeBy(t.now.Add(latePause))
	}
}

// meet adds a peer, making room for it. It claims ip; an invalid ip claims nothing.
func (t *Table) meet(e endpoint, ip netip.Addr) *peer {
	t.makeRoomAt(e.gid)
	t.makeRoomHeard()
	p := &peer{endpoint: e, mac: t.newMAC(e, ip), seen: t.now}
	t.peers.add(p)
	if !p.plain {
		t.pub.changeBy(t.now.Add(latePause))
	}
	return p
}

// newMAC returns the MAC of a new peer, which claims ip: its former one, if it is a
// forgotten peer that comes back.
func (t *Table) newMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	former := t.past.byIP[ip]
	if !former.isAt(e.gid) {
		former = t.past.byEndpoint[e]
	}
	if former != nil {
		t.past.remove(former)
		if !t.mac.is(former.mac) {
			return former.mac
		}
	}
	return t.freeMAC(e, ip)
}

// freeMAC returns a MAC for an interface at e, which claims ip, that no peer has or had.
func (t *Table) freeMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	return freeMAC(e.gid, e.qpn, uint32(t.now.UnixMicro()), func(m ipoib.MAC) bool {
		return t.macTaken(m) || t.resolver.denies(m, ip)
	})
}

// macTaken reports whether a MAC belongs to a peer, to one that is remembered, or to the
// host.
func (t *Table) macTaken(m ipoib.MAC) bool {
	return t.peers.byMAC[m] != nil || t.past.byMAC[m] != nil || t.mac.is(m)
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
