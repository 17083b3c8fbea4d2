package roce

import "encoding/binary"

// lrhLen is the number of bytes of ones that replace InfiniBand's local route
// header (A17.3.3).
const lrhLen = 8

// maskedLen is the maximum length of a masked prefix: LRH, IPv6, UDP, BTH.
const maskedLen = lrhLen + ipv6Len + udpLen + BTHLen

// ICRC returns the invariant CRC (IBA 7.8.1, A17.3.3) of a datagram of at most 65,503
// bytes, from the BTH to the padding, without the ICRC itself. It panics without a whole
// BTH. ICRC does not allocate. The datagram should not lie on the stack, because it escapes
// into the assembly of hash/crc32.
func ICRC(p *Path, datagram []byte) uint32 {
	return update(prefixCRC(p, datagram[:BTHLen], len(datagram)+ICRCLen), datagram[BTHLen:])
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

// Sealer writes the ICRCs of datagrams. It remembers the state of the CRC that datagrams of one
// path and length share, such as the datagrams of a train. The zero value is ready to use.
type Sealer struct{ start start }

// Seal writes the ICRC, as the function [ICRC] returns it, to the last ICRCLen bytes of a datagram
// in one piece, which starts with its BTH. It does not allocate. It changes the byte of the BTH
// that routers may change, and restores it.
func (s *Sealer) Seal(p *Path, datagram []byte) {
	end := len(datagram) - ICRCLen
	var crc uint32
	if p.ID < lowIDs {
		resv8a := datagram[bthResv8a]
		datagram[bthResv8a] = 0xff
		crc = update(^s.start.prefix(p, datagram, len(datagram)), datagram[bthResv8a:end])
		datagram[bthResv8a] = resv8a
	} else {
		crc = ICRC(p, datagram[:end])
	}
	PutICRC(datagram[end:], crc)
}

// start is the state of the CRC that datagrams of one path and length share. The zero value is
// ready to use.
type start struct {
	path  Path // with identification 0
	n     int  // bytes of the datagram; 0: nothing is remembered
	bth   [bthResv8a]byte
	state uint32 // of the CRC after the pseudo header and bth
}

// crc returns the same as prefixCRC.
func (s *start) crc(p *Path, bth []byte, n int) uint32 {
	if p.ID >= lowIDs {
		return prefixCRC(p, bth, n)
	}
	const resv8a = 0xff // the first byte of the rest
	rest := binary.LittleEndian.Uint64(bth[bthResv8a:BTHLen]) | resv8a
	return ^updateWord(s.prefix(p, bth, n), rest)
}

// prefix returns the state of the CRC after the pseudo header and the first bytes of the BTH,
// which are before the byte that routers may change. The identification is below lowIDs.
func (s *start) prefix(p *Path, bth []byte, n int) uint32 {
	if n != s.n || [bthResv8a]byte(bth) != s.bth ||
		p.SrcPort != s.path.SrcPort || p.Dst != s.path.Dst || p.Src != s.path.Src {
		s.begin(p, bth, n)
	}
	if p.is4() {
		return s.state ^ idStates[p.ID]
	}
	return s.state
}

// begin remembers another datagram.
func (s *start) begin(p *Path, bth []byte, n int) {
	var b [maskedLen]byte
	s.path, s.n, s.bth = *p, n, [bthResv8a]byte(bth)
	s.path.ID = 0
	s.path.putMasked(&b, n)
	at := lrhLen + p.ipLen() + udpLen
	copy(b[at:], s.bth[:])
	s.state = updateState(^uint32(0), b[:at+bthResv8a])
}

// idStates are the differences that IPv4 identifications make to the state after the first
// bytes of the BTH.
var idStates = buildIDStates()

func buildIDStates() (t [lowIDs]uint32) {
	for id := range t {
		var b [ipv4Len - ipv4IDOffset + udpLen + bthResv8a]byte
		binary.BigEndian.PutUint16(b[:], uint16(id))
		t[id] = updateState(0, b[:])
	}
	return t
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
