package neigh

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// heardFrom returns the peer at e, which has just claimed ip; an invalid ip
// claims nothing. For an unknown endpoint there are three cases:
//
//	ip is bound to another QPN of the GID | that peer has restarted: new QPN, same MAC
//	a removed peer had ip or e            | that peer has returned: new entry, same MAC
//	else                                  | a new peer
//
// A restarted peer may probe before it claims an address, and its probe adds a
// new peer. If that one then claims an address of another peer, it is replaced
// according to the same cases, provided that nothing depends on it yet.
func (t *roster) heardFrom(e endpoint, ip netip.Addr) *peer {
	p, owner := t.peers.byEndpoint[e], t.peers.byIP[ip]
	if p != nil && p.blank() &&
		(owner.isAt(e.gid) || t.past.byIP[ip].isAt(e.gid) || t.hints.denies(p.mac, ip)) {
		t.removePeer(p)
		t.past.remove(p) // the same interface comes back here
		p = nil
	}
	switch {
	case p != nil:
	case owner.isAt(e.gid):
		p = owner
		t.movePeer(p, e)
	default:
		p = t.addPeer(e, ip)
	}
	t.peers.touch(p, t.step.now)
	p.heardAt = t.step.now
	t.silent.stop(p)
	if isUnicast(ip) {
		// The latest claim wins, as in ARP itself. If the address was learnt from the host,
		// it has moved away.
		t.host.ips.unlearn(ip)
		t.peers.bind(ip, p)
	}
	return p
}

// blank reports whether nothing depends on p.
func (p *peer) blank() bool {
	return !p.claimed && !p.used && p.handle.state == handleNone
}

// isAt reports whether p is not nil and has this GID.
func (p *peer) isAt(gid hca.GID) bool { return p != nil && p.gid == gid }

// movePeer moves p to the unused endpoint e. The new QPN is published at once, unless
// many peers have moved in this second: then two queue pairs may be claiming the same
// address alternately.
func (t *roster) movePeer(p *peer, e endpoint) {
	t.peers.setQPN(p, e.qpn)
	t.view.show(p)
	t.silent.reset(p)
	if t.returns.allow(t.step.now, maxUrgentReturns) {
		t.view.urgent()
	} else {
		t.view.changeLate()
	}
}

// addPeer adds a peer that claims ip, making room for it; an invalid ip claims
// nothing.
func (t *roster) addPeer(e endpoint, ip netip.Addr) *peer {
	t.makeRoomAt(e.gid)
	t.makeRoomHeard()
	p := &peer{endpoint: e, mac: t.newMAC(e, ip), seen: t.step.now}
	t.peers.add(p)
	if !p.plain {
		t.view.show(p)
		t.view.changeLate()
	}
	return p
}

// newMAC returns the MAC of a new peer that claims ip: its former MAC if it is a
// removed peer that returns.
func (t *roster) newMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	former := t.past.byIP[ip]
	if !former.isAt(e.gid) {
		former = t.past.byEndpoint[e]
	}
	if former != nil {
		t.past.remove(former)
		if !t.host.mac.is(former.mac) {
			return former.mac
		}
	}
	return t.freeMAC(e, ip)
}

// freeMAC returns a MAC, for an interface at e that claims ip, that no present or
// remembered peer has.
func (t *roster) freeMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	return freeMAC(e.gid, e.qpn, uint32(t.step.now.UnixMicro()), func(m ipoib.MAC) bool {
		return t.macTaken(m) || t.hints.denies(m, ip)
	})
}

// macTaken reports whether a MAC belongs to a peer, a remembered peer or the host.
func (t *roster) macTaken(m ipoib.MAC) bool {
	return t.peers.byMAC[m] != nil || t.past.byMAC[m] != nil || t.host.mac.is(m)
}

// isUnicast reports whether ip can be the address of a node.
func isUnicast(ip netip.Addr) bool {
	return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() &&
		ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}
