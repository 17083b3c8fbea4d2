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

// change is a set of changed properties of a port.
type change uint8

const (
	changedState change = 1 << iota
	changedGIDs
	changedMTU
)

// port is the HCA's view of the underlay's state.
type port struct {
	up     bool
	mtu    int  // of the underlay
	strict bool // standard MTUs only
	gids   []softqp.GID
	active hca.MTU
}

// become applies a state of the underlay and returns the resulting changes.
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

// placeAddrs clears the entries of addresses that no longer exist and puts new addresses
// into empty entries, or at the end.
func (p *port) placeAddrs(addrs []netip.Addr) (changed bool) {
	addrs = slices.Clone(addrs)
	for i := range addrs {
		addrs[i] = addrs[i].Unmap().WithZone("")
	}
	gids := slices.Clone(p.gids) // snapshots may share the old ones
	for i := range gids {
		if gids[i].Addr.IsValid() && !slices.Contains(addrs, gids[i].Addr) {
			gids[i] = softqp.GID{}
			changed = true
		}
	}
	for _, a := range addrs {
		if !slices.ContainsFunc(gids, func(g softqp.GID) bool { return g.Addr == a }) {
			gids = placeAddr(gids, a)
			changed = true
		}
	}
	p.gids = gids
	return changed
}

func placeAddr(gids []softqp.GID, a netip.Addr) []softqp.GID {
	i := slices.IndexFunc(gids, func(g softqp.GID) bool { return !g.Addr.IsValid() })
	if i < 0 {
		return append(gids, softqp.GID{Addr: a})
	}
	gids[i].Addr = a
	return gids
}

// setPayloads derives each GID's MaxPayload and the port's MTU.
func (p *port) setPayloads() {
	longest := 0
	for i := range p.gids {
		g := &p.gids[i]
		g.MaxPayload = 0
		if g.Addr.IsValid() {
			g.MaxPayload = p.payload(g.Addr)
		}
		longest = max(longest, g.MaxPayload)
	}
	p.active = stepFor(longest)
}

// payload returns the size of the largest UD message that the underlay carries.
func (p *port) payload(a netip.Addr) int {
	overhead := overheadIPv4
	if a.Is6() {
		overhead = overheadIPv6
	}
	room := max(0, p.mtu-overhead)
	if p.strict {
		return int(hca.MTUFor(room))
	}
	return min(int(hca.MaxMTU), room/payloadUnit*payloadUnit)
}

// stepFor returns the smallest standard MTU that is no less than n.
func stepFor(n int) hca.MTU {
	m := hca.MTU(256)
	for int(m) < n {
		m *= 2
	}
	return m
}

// engineGIDs returns the table for a snapshot, which must not be changed.
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
		}
	}
	return a
}

// GUIDOf returns the GUID of a device whose underlay has this MAC: its EUI-64 (RFC 4291,
// appendix A), as in rxe.
func GUIDOf(m [6]byte) hca.GUID {
	return hca.GUID{m[0] ^ 2, m[1], m[2], 0xff, 0xfe, m[3], m[4], m[5]}
}
