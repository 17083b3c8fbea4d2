package neigh

import (
	"net/netip"

	"ipoibd/ud/ipoib"
)

// routerKind is what a station says about itself as an IPv6 router. The larger one is the better router: each machine
// with containers is one by its neighbour advertisements.
type routerKind uint8

const (
	notRouter  routerKind = iota
	saysSo                // it sets the router flag of neighbour advertisements
	advertises            // it sends router advertisements
)

// after returns the kind of a station that has sent an ND message (RFC 4861 sections 6.2.5 and 7.2.5).
func (k routerKind) after(nd ipoib.ND) routerKind {
	switch {
	case nd.Type == ipoib.NDRouterAdvert && nd.Lifetime > 0:
		return advertises
	case nd.Type == ipoib.NDRouterAdvert:
		return notRouter
	case nd.Type != ipoib.NDNeighborAdvert || k == advertises:
		return k
	case nd.Flags&ipoib.NAFlagRouter != 0:
		return saysSo
	}
	return notRouter
}

// sentND notes what an ND message of a station says about it.
func (s *stations) sentND(m ipoib.MAC, nd ipoib.ND) {
	if st := s.byMAC[m]; st != nil {
		s.setRouter(st, st.router.after(nd))
	}
}

func (s *stations) setRouter(st *station, k routerKind) {
	if st.router != k {
		st.router = k
		s.chooseGate()
	}
}

// chooseGate chooses the best router: of several, the one at home, or else the present one.
func (s *stations) chooseGate() {
	best := s.byMAC[s.home.mac]
	if s.gate != nil && s.is(s.gate.mac) && s.gate.router > best.kind() {
		best = s.gate
	}
	for _, st := range s.list {
		if st.router > best.kind() {
			best = st
		}
	}
	if best != s.gate {
		s.gate, s.changed = best, true
	}
}

// kind returns the kind of a station, which may be nil.
func (s *station) kind() routerKind {
	if s == nil {
		return notRouter
	}
	return s.router
}

// isRouter reports whether an address is that of an IPv6 router.
func (s *stations) isRouter(ip netip.Addr) bool {
	st := s.byIP[ip]
	if st == s.home {
		st = s.byMAC[s.home.mac]
	}
	return st.kind() != notRouter
}
