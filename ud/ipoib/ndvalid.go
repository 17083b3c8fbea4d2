package ipoib

import "net/netip"

// validate applies what RFC 4861 has a receiver check before it believes a
// message, beyond lengths and checksum.
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

// validProbe reports whether a solicitation from the unspecified address, which
// is duplicate address detection, goes to a solicited-node group and names no
// sender (section 7.1.1).
func (nd ND) validProbe() bool {
	return nd.Dst == SolicitedNode(nd.Dst) && nd.Link.Type == OptionNone
}

// validRedirect checks that a router of the link sends traffic for dest to
// another router of the link, or to dest itself (section 8.1).
func (nd ND) validRedirect(dest netip.Addr) bool {
	return nd.Src.IsLinkLocalUnicast() && !dest.IsMulticast() &&
		(nd.Target.IsLinkLocalUnicast() || nd.Target == dest)
}
