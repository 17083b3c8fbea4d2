package ipoib

import "net/netip"

// validate makes the checks that RFC 4861 requires of a receiver, apart from
// those of lengths and checksum.
func (nd ND) validate(packet []byte) error {
	if nd.Src.IsMulticast() || !nd.valid(packet) {
		return ErrInvalid
	}
	return nil
}

func (nd ND) valid(packet []byte) bool {
	switch nd.Type {
	case NDRouterSolicit: // section 6.1.1
		return !nd.Src.IsUnspecified() || nd.Link.Type == OptionNone
	case NDRouterAdvert: // section 6.1.2
		return nd.Src.IsLinkLocalUnicast()
	case NDNeighborSolicit: // section 7.1.1
		return !nd.Target.IsMulticast() && (!nd.Src.IsUnspecified() || nd.validProbe())
	case NDNeighborAdvert: // section 7.1.2
		return !nd.Target.IsMulticast() && (!nd.Dst.IsMulticast() || nd.Flags&NAFlagSolicited == 0)
	}
	return nd.validRedirect(netip.AddrFrom16([16]byte(packet[ndRedirectDest:])))
}

// validProbe reports whether a solicitation from the unspecified address
// (duplicate address detection) goes to a solicited-node group and has no
// source link-layer address (section 7.1.1).
func (nd ND) validProbe() bool {
	return nd.Dst == SolicitedNode(nd.Dst) && nd.Link.Type == OptionNone
}

// validRedirect checks that a router on the link redirects traffic for dest to
// another router on the link, or to dest itself (section 8.1).
func (nd ND) validRedirect(dest netip.Addr) bool {
	return nd.Src.IsLinkLocalUnicast() && !dest.IsMulticast() &&
		(nd.Target.IsLinkLocalUnicast() || nd.Target == dest)
}
