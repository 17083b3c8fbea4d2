package soft

import (
	"net/netip"
	"slices"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// Overhead of an IP packet of the underlay over the UD payload, in bytes.
const (
	overheadIPv4 = 20 + overheadUDP
	overheadIPv6 = 40 + overheadUDP
	overheadUDP  = 8 + roce.HeaderLen + roce.ICRCLen
)

// payloadUnit is the unit to which a payload is padded, in bytes (IBA 9.2.4).
const payloadUnit = 4

// change is the set of differences between two states of a port.
type change uint8

const (
	changedState change = 1 << iota
	changedGIDs
	changedMTU
)

// port is the HCA's port, derived from the underlay's state.
type port struct {
	up     bool
	mtu    int  // of the underlay
	strict bool // standard MTUs only
	gids   []softqp.GID
	active hca.MTU
	// limit4 and limit6 are the narrowest paths of each family, as of the last look.
	limit4, limit6 hca.PathLimit
}

// become adopts a state of the underlay and returns what has changed.
func (p *port) become(s *transport.State, strict bool) (c change) {
	was, payloads := *p, slices.Clone(p.gids)
	p.up, p.mtu, p.strict = s.Present && s.Up, s.MTU, strict
	if p.placeAddrs(s.Addrs) {
		c |= changedGIDs
	}
	p.setPayloads()
	if p.up != was.up {
		c |= changedState
	}
	if p.active != was.active || c&changedGIDs == 0 && !slices.Equal(p.gids, payloads) {
		c |= changedMTU
	}
	return c
}

// placeAddrs clears the entries of addresses that were removed, and puts new addresses into
// empty entries or at the end.
func (p *port) placeAddrs(addrs []netip.Addr) (changed bool) {
	addrs = slices.Clone(addrs)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap().WithZone("")
	}
	gids := slices.Clone(p.gids) // snapshots share the old table
	for i := range gids {
		if gids[i].Addr.IsValid() && !slices.Contains(addrs, gids[i].Addr) {
			gids[i] = softqp.GID{}
			changed = true
		}
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(gids, func(g softqp.GID) bool { return g.Addr == a }) {
			i := slices.IndexFunc(gids, func(g softqp.GID) bool { return !g.Addr.IsValid() })
			if i < 0 {
				i, gids = len(gids), append(gids, softqp.GID{})
			}
			gids[i].Addr = a
			changed = true
		}
	}
	p.gids = gids
	return changed
}

// setPayloads sets each GID's MaxPayload, and the port's MTU: the smallest standard MTU that
// is not less than the largest of them.
func (p *port) setPayloads() {
	longest := 0
	for i := range p.gids {
		g := &p.gids[i]
		g.MaxPayload = 0
		if g.Addr.IsValid() {
			g.MaxPayload = p.payload(g.Addr, p.mtu)
		}
		longest = max(longest, g.MaxPayload)
	}
	for p.active = 256; int(p.active) < longest; {
		p.active *= 2
	}
}

// overhead returns what an IP packet between addresses of a family has besides the UD payload.
func overhead(a netip.Addr) int {
	if a.Is6() {
		return overheadIPv6
	}
	return overheadIPv4
}

// payload returns the longest UD message that an IP packet can carry, in bytes.
func (p *port) payload(a netip.Addr, packet int) int {
	room := max(0, packet-overhead(a))
	if p.strict {
		return int(hca.MTUFor(room))
	}
	return min(int(hca.MaxMTU), room/payloadUnit*payloadUnit)
}

// engineGIDs returns an immutable copy of the table, for a snapshot.
func (p *port) engineGIDs() []softqp.GID { return slices.Clone(p.gids) }

func (p *port) attr(g hca.GUID, pkeys []hca.PKey) hca.PortAttr {
	a := hca.PortAttr{
		State: hca.PortDown, MaxMTU: hca.MaxMTU, ActiveMTU: p.active,
		LinkLayer: hca.LinkLayerEthernet, GUID: g,
		GIDs: make([]hca.GIDEntry, len(p.gids)), PKeys: slices.Clone(pkeys),
	}
	if p.up {
		a.State = hca.PortActive
	}
	for i, e := range p.gids {
		a.GIDs[i].Type = hca.GIDTypeRoCEv2
		if e.Addr.IsValid() {
			a.GIDs[i].GID, a.GIDs[i].MaxPayload = hca.GIDFromAddr(e.Addr), e.MaxPayload
			limit := p.limit6
			if e.Addr.Is4() {
				limit = p.limit4
			}
			if limit.Carries < e.MaxPayload { // else the netdev has become as narrow
				a.GIDs[i].Path = limit
			}
		}
	}
	return a
}

// GUIDOf returns the GUID of a device whose underlay has a MAC: the EUI-64 of the MAC (RFC
// 4291, appendix A), as in rxe.
func GUIDOf(m [6]byte) hca.GUID {
	return hca.GUID{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}
