package roce

import (
	"encoding/binary"

	"ipoibd/hca"
)

// PutGRH writes the first hca.GRHLen bytes of a UD receive to dst (A17.4.5.1):
// the IPv6 header, or 20 zero bytes and the IPv4 header. The IPv4 checksum must be
// correct, because it distinguishes the two layouts. For IPv6, tos and ttl are the
// traffic class and the hop limit. n is the length of the datagram, from the BTH to
// the ICRC. The flow label is zero, because a UDP socket does not report it. PutGRH
// panics if dst is shorter. [hca.ParseGRH] is the inverse.
func PutGRH(dst []byte, p *Path, tos, ttl uint8, n int) {
	dst = dst[:hca.GRHLen]
	if !p.is4() {
		p.putIPv6(dst, uint32(tos)<<20, ttl, n)
		return
	}
	ip := dst[hca.GRHLen-ipv4Len:]
	clear(dst[:hca.GRHLen-ipv4Len])
	p.putIPv4(ip, tos, ttl, 0, n)
	binary.BigEndian.PutUint16(ip[ipv4SumOffset:], hca.IPv4Checksum(ip))
}
