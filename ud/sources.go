package ud

import (
	"net/netip"
	"slices"

	"ipoibd/ud/ipoib"
)

// sources are the IP addresses that the host may use, each without a zone; nil: any.
type sources []netip.Addr

// permit reports whether a packet neither comes from another address nor claims one ([ipoib.ClaimedIP]). The
// unspecified address passes: a host that has none yet sends from it (RFC 2131, 4862, 5227). ARP and ND that are
// malformed may pass; the slow path drops them.
func (s sources) permit(typ ipoib.EtherType, packet []byte) bool {
	if s == nil {
		return true
	}
	if ip, ok := ipoib.ClaimedIP(typ, packet); ok && !s.has(ip) {
		return false
	}
	ip, ok := ipoib.SourceIP(typ, packet)
	return ok && s.has(ip) || typ == ipoib.EtherTypeARP || typ == ipoib.EtherTypeRARP
}

func (s sources) has(ip netip.Addr) bool { return ip.IsUnspecified() || slices.Contains(s, ip) }

// SetSources makes Tx drop frames that come from, or claim, an IP address other than these and the
// unspecified one, and messages of routers; nil: it accepts any. Tx keeps the list, which must not change afterwards.
func (t *Tx) SetSources(list []netip.Addr) {
	of := sources(list)
	t.sources.Store(&of)
}
