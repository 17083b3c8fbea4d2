package roce

import (
	"encoding/binary"

	"ipoibd/hca"
)

// PutGRH writes the first hca.GRHLen bytes of a UD receive to dst (A17.4.5.1):
// the IPv6 header, or 20 bytes of zero and the IPv4 header, its checksum right,
// since that is what tells the two apart. tos and ttl are also traffic class and
// hop limit; n is the length of the datagram, BTH to ICRC. The flow label, which
// a UDP socket does not show, is zero. It panics when dst is shorter.
// [hca.ParseGRH] is the inverse.
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
