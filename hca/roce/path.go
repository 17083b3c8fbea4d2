package roce

import (
	"encoding/binary"
	"net/netip"
)

// Path holds the variable fields outside the datagram that the ICRC covers. Src and
// Dst are of the same family; IPv4 addresses are in the 4-byte form. An IPv6 zone is
// ignored.
type Path struct {
	Src, Dst netip.Addr
	SrcPort  uint16 // UDP source port
	ID       uint16 // IPv4 identification; IPv6 has none
}

// Header lengths and constants (RFC 791, RFC 8200, RFC 768).
const (
	ipv4Len    = 20 // without options; RoCEv2 sends none
	ipv6Len    = 40
	udpLen     = 8
	protoUDP   = 17
	ipv4VerIHL = 0x45
	ipv4DF     = 0x4000
	ipv6Ver    = 6 << 28

	ipv4IDOffset  = 4
	ipv4SumOffset = 10
	ipv4SrcOffset = 12
)

// maxDatagram is the longest datagram that the total length field of IPv4 allows.
const maxDatagram = 1<<16 - 1 - ipv4Len - udpLen

// is4 reports whether the path is IPv4.
func (p *Path) is4() bool { return p.Src.Is4() && p.Dst.Is4() }

// ipLen returns the length of the IP header.
func (p *Path) ipLen() int {
	if p.is4() {
		return ipv4Len
	}
	return ipv6Len
}

// putIPv4 writes the IPv4 header of a UDP datagram with n bytes of payload.
func (p *Path) putIPv4(b []byte, tos, ttl uint8, checksum uint16, n int) {
	b = b[:ipv4Len]
	src, dst := p.Src.As4(), p.Dst.As4()
	b[0], b[1] = ipv4VerIHL, tos
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4Len+udpLen+n))
	binary.BigEndian.PutUint16(b[ipv4IDOffset:], p.ID)
	binary.BigEndian.PutUint16(b[6:], ipv4DF)
	b[8], b[9] = ttl, protoUDP
	binary.BigEndian.PutUint16(b[ipv4SumOffset:], checksum)
	copy(b[ipv4SrcOffset:], src[:])
	copy(b[ipv4SrcOffset+4:], dst[:])
}

// putIPv6 writes the IPv6 header of a UDP datagram with n bytes of payload. flow is
// the traffic class and the flow label, together 28 bits.
func (p *Path) putIPv6(b []byte, flow uint32, hopLimit uint8, n int) {
	b = b[:ipv6Len]
	src, dst := p.Src.As16(), p.Dst.As16()
	binary.BigEndian.PutUint32(b, ipv6Ver|flow)
	binary.BigEndian.PutUint16(b[4:], uint16(udpLen+n))
	b[6], b[7] = protoUDP, hopLimit
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
}
