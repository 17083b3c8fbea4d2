package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// lrhLen is the number of bytes of ones that replace InfiniBand's local route
// header (A17.3.3).
const lrhLen = 8

// maskedLen is the maximum length of a masked prefix: LRH, IPv6, UDP, BTH.
const maskedLen = lrhLen + ipv6Len + udpLen + BTHLen

// ICRC returns the invariant CRC (IBA 7.8.1, A17.3.3) of a datagram given in
// pieces, from the BTH to the padding, without the ICRC itself. The first piece
// must contain the whole BTH, or ICRC panics. All pieces together are at most
// 65,503 bytes. ICRC does not allocate. The pieces should not lie on the stack,
// because they escape into the assembly of hash/crc32.
func ICRC(p *Path, parts ...[]byte) uint32 {
	n := ICRCLen
	for _, part := range parts {
		n += len(part)
	}
	crc := prefixCRC(p, parts[0][:BTHLen], n)
	crc = crc32.Update(crc, crc32.IEEETable, parts[0][BTHLen:])
	for _, part := range parts[1:] {
		crc = crc32.Update(crc, crc32.IEEETable, part)
	}
	return crc
}

// PutICRC writes an ICRC to the first ICRCLen bytes of dst, little-endian.
func PutICRC(dst []byte, icrc uint32) { binary.LittleEndian.PutUint32(dst, icrc) }

// prefixCRC returns the CRC of the masked pseudo header and BTH of a datagram
// of n bytes.
func prefixCRC(p *Path, bth []byte, n int) uint32 {
	var b [maskedLen]byte
	udp := lrhLen + p.ipLen()
	p.putMasked(&b, n)
	copy(b[udp+udpLen:], bth)
	b[udp+udpLen+bthResv8a] = 0xff
	return ^updateState(^uint32(0), b[:udp+udpLen+BTHLen])
}

// putMasked writes the pseudo header. Fields that routers may change are ones: ToS,
// TTL and header checksum of IPv4; traffic class, flow label and hop limit of IPv6;
// the UDP checksum.
func (p *Path) putMasked(b *[maskedLen]byte, n int) {
	binary.BigEndian.PutUint64(b[:], ^uint64(0))
	udp := b[lrhLen+p.ipLen():]
	if p.is4() {
		p.putIPv4(b[lrhLen:], 0xff, 0xff, 0xffff, n)
	} else {
		p.putIPv6(b[lrhLen:], 1<<28-1, 0xff, n)
	}
	binary.BigEndian.PutUint16(udp, p.SrcPort)
	binary.BigEndian.PutUint16(udp[2:], Port)
	binary.BigEndian.PutUint16(udp[4:], uint16(udpLen+n))
	binary.BigEndian.PutUint16(udp[6:], 0xffff)
}
