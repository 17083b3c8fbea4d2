package ipoib

import "net/netip"

// valid makes the checks that RFC 4861 requires of a receiver, except of lengths and checksum.
func (nd ND) valid(packet []byte) bool {
	if nd.Src.IsMulticast() {
		return false
	}
	switch nd.Type {
	case NDRouterSolicit: // section 6.1.1
		return !nd.Src.IsUnspecified() || nd.Link.Type == OptionNone
	case NDRouterAdvert: // section 6.1.2
		return nd.Src.IsLinkLocalUnicast()
	case NDNeighborSolicit: // section 7.1.1
		// Duplicate address detection sends from the unspecified address, to a
		// solicited-node group and without a source link-layer address.
		detection := nd.Dst == SolicitedNode(nd.Dst) && nd.Link.Type == OptionNone
		return !nd.Target.IsMulticast() && (!nd.Src.IsUnspecified() || detection)
	case NDNeighborAdvert: // section 7.1.2
		return !nd.Target.IsMulticast() && (!nd.Dst.IsMulticast() || nd.Flags&NAFlagSolicited == 0)
	}
	// A router on the link redirects traffic for dest to another router on the link, or to
	// dest itself (section 8.1).
	dest := netip.AddrFrom16([16]byte(packet[ndRedirectDest:]))
	return nd.Src.IsLinkLocalUnicast() && !dest.IsMulticast() && (nd.Target.IsLinkLocalUnicast() || nd.Target == dest)
}
