package ipoib

import "net/netip"

// AppendUnsolicitedNA appends an IPv6 packet, in the IPoIB form, that announces
// to all nodes of the link that src is now at link: an unsolicited neighbour
// advertisement to ff02::1 with the override flag (RFC 4861 section 7.2.6). The
// router flag is clear. src must be an IPv6 address.
func AppendUnsolicitedNA(dst []byte, src netip.Addr, link Addr) []byte {
	start := len(dst)
	dst = appendND(dst, src, netip.IPv6LinkLocalAllNodes(), NDNeighborAdvert, NAFlagOverride, src)
	dst = appendLinkOption(dst, OptionTargetLink, link)
	finishND(dst[start:])
	return dst
}

// AppendNS appends an IPv6 packet, in the IPoIB form, that solicits target: a
// neighbour solicitation to its solicited-node group. It includes the sender's
// link-layer address unless src is unspecified, as in duplicate address
// detection (RFC 4861 section 4.3). src and target must be IPv6 addresses.
func AppendNS(dst []byte, src, target netip.Addr, link Addr) []byte {
	start := len(dst)
	dst = appendND(dst, src, SolicitedNode(target), NDNeighborSolicit, 0, target)
	if !src.IsUnspecified() {
		dst = appendLinkOption(dst, OptionSourceLink, link)
	}
	finishND(dst[start:])
	return dst
}

// appendND appends the IPv6 header and the fixed part of a neighbour
// solicitation or advertisement; lengths and checksum are still zero.
func appendND(dst []byte, src, to netip.Addr, msgType, flags uint8, target netip.Addr) []byte {
	dst = append(dst, 0x60, 0, 0, 0, 0, 0, protoICMPv6, ndHopLimit)
	dst = appendIPv6(appendIPv6(dst, src), to)
	dst = append(dst, msgType, 0, 0, 0, flags, 0, 0, 0)
	return appendIPv6(dst, target)
}

func appendIPv6(dst []byte, ip netip.Addr) []byte {
	b := ip.As16()
	return append(dst, b[:]...)
}
