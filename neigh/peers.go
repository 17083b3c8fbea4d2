package neigh

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// peers are the peers, present and removed: who is added, moved, moved to another class and removed.
type peers struct {
	step    *step
	host    *host
	view    *view
	silent  *silent
	lids    *lids
	handles *handles

	conf    Config
	live    entries
	past    entries // removed peers; see remember
	returns rate    // of moved peers that were published at once
	doubts  alarms[*peer]
	hints   hints
	ready   []*peer // restored peers whose handles are requested with the next Attached
}

// heardFrom returns the peer at e, which has just claimed ip; an invalid ip
// claims nothing. For an unknown endpoint there are four cases:
//
//	ip is bound to another QPN of the GID, | that peer has restarted: new QPN, same MAC
//	which has sent no data for a second    |
//	the same, but it sends data            | another interface of that host has the address now: a new peer
//	a removed peer had ip or e             | that peer has returned: new entry, same MAC
//	else                                   | a new peer
//
// A restarted peer may probe before it claims an address, and its probe adds a
// new peer. If that one then claims an address of another peer, it is replaced
// according to the same cases, provided that nothing depends on it yet.
func (s *peers) heardFrom(e endpoint, ip netip.Addr) *peer {
	p, owner := s.live.byEndpoint[e], s.live.byIP[ip]
	if p != nil && !p.claimed && !p.used && p.handle.state == handleNone && // nothing depends on it
		(owner.isAt(e.gid) || s.past.byIP[ip].isAt(e.gid) || s.hints.denies(p.mac, ip)) {
		s.remove(p)
		s.past.remove(p) // the same interface comes back here
		p = nil
	}
	switch {
	case p != nil:
	case owner.isAt(e.gid) && !owner.alive(s.step.now):
		p = owner
		s.move(p, e)
	default:
		p = s.add(e, ip)
		if owner.isAt(e.gid) && owner.busy() { // the host sends data to ip
			s.promote(p)
			s.handles.becomeAsked(p)
		}
	}
	s.live.touch(p, s.step.now)
	p.heardAt = s.step.now
	s.silent.stop(p)
	s.doubts.stop(&p.doubt.alarm)
	if isUnicast(ip) {
		// The latest claim wins, as in ARP itself. If the address was learnt from the host,
		// it has moved away.
		s.host.stations.leave(ip, s.step.now)
		s.live.bind(ip, p)
		if owner != p && owner.isAt(e.gid) {
			s.doubt(owner, p)
		}
	}
	return p
}

// isAt reports whether p is not nil and has this GID.
func (p *peer) isAt(gid hca.GID) bool { return p != nil && p.gid == gid }

// move moves p to the unused endpoint e. The new QPN is published at once, unless
// many peers have moved in this second: then two queue pairs may be claiming the same
// address alternately.
func (s *peers) move(p *peer, e endpoint) {
	s.live.setQPN(p, e.qpn)
	s.view.show(p)
	s.silent.reset(p)
	if s.returns.allow(s.step.now, maxUrgentReturns) {
		s.view.urgent()
	} else {
		s.view.changeLate()
	}
}

// add adds a peer that claims ip, making room for it; an invalid ip claims
// nothing.
func (s *peers) add(e endpoint, ip netip.Addr) *peer {
	s.makeRoomAt(e.gid)
	s.makeRoomHeard()
	p := &peer{endpoint: e, mac: s.newMAC(e, ip), seen: s.step.now}
	s.live.add(p)
	if !p.plain {
		s.view.show(p)
		s.view.changeLate()
	}
	s.place(p)
	return p
}

// place indexes p by the LID that its path leads to, if that is known.
func (s *peers) place(p *peer) {
	lid := s.lids.of(p.gid)
	if lid == p.lid {
		return
	}
	if former := s.live.setLID(p, lid); former != nil {
		s.view.show(former)
	}
	s.view.show(p)
	s.view.changeLate()
}

// displace removes all peers from the index by LID.
func (s *peers) displace() {
	for p := range s.live.all() {
		s.live.setLID(p, 0)
		s.view.show(p)
	}
}

// at returns the peer at e, which it adds if there is none.
func (s *peers) at(e endpoint) *peer {
	if p := s.live.byEndpoint[e]; p != nil {
		return p
	}
	return s.add(e, netip.Addr{})
}

// newMAC returns the MAC of a new peer that claims ip: its former MAC if it is a
// removed peer that returns.
func (s *peers) newMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	former := s.past.byIP[ip]
	if !former.isAt(e.gid) {
		former = s.past.byEndpoint[e]
	}
	if former != nil {
		s.past.remove(former)
		if !s.host.stations.is(former.mac) {
			return former.mac
		}
	}
	return s.freeMAC(e, ip)
}

// freeMAC returns a MAC, for an interface at e that claims ip, that no present or
// remembered peer has.
func (s *peers) freeMAC(e endpoint, ip netip.Addr) ipoib.MAC {
	return freeMAC(e.gid, e.qpn, uint32(s.step.now.UnixMicro()), func(m ipoib.MAC) bool {
		return s.macTaken(m) || s.hints.denies(m, ip)
	})
}

// macTaken reports whether a MAC belongs to a peer, a remembered peer or the host.
func (s *peers) macTaken(m ipoib.MAC) bool {
	return s.live.byMAC[m] != nil || s.past.byMAC[m] != nil || s.host.stations.is(m)
}

// isUnicast reports whether ip can be the address of a node. An IPv4-mapped one is on no link (RFC 4291 section
// 2.5.5.2), and would be taken for the IPv4 address.
func isUnicast(ip netip.Addr) bool {
	return ip.IsValid() && !ip.Is4In6() && !ip.IsUnspecified() && !ip.IsMulticast() && !ip.IsLoopback() &&
		ip != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// addrOf returns the fabric address for a MAC, or false if the MAC is unknown.
func (s *peers) addrOf(m ipoib.MAC) (ipoib.Addr, bool) {
	if s.host.stations.is(m) {
		return s.host.link.addr(), true
	}
	if p := s.live.byMAC[m]; p != nil {
		return p.addr(), true
	}
	return ipoib.Addr{}, false
}

// macOf returns the MAC for an endpoint, or zero if the endpoint is unknown. For the own endpoint it is the
// MAC of the station that has ip.
func (s *peers) macOf(e endpoint, ip netip.Addr) ipoib.MAC {
	if e == s.host.link.self {
		return s.host.stations.dest(ip)
	}
	if p := s.live.byEndpoint[e]; p != nil {
		return p.mac
	}
	return ipoib.MAC{}
}
