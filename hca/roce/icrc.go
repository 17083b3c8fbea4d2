package roce

import "encoding/binary"

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
	return updateAll(prefixCRC(p, parts[0][:BTHLen], n), parts)
}

// updateAll adds the pieces of a datagram after its BTH to a CRC.
func updateAll(crc uint32, parts [][]byte) uint32 {
	crc = update(crc, parts[0][BTHLen:])
	for _, part := range parts[1:] {
		crc = update(crc, part)
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

// Sealer computes the ICRCs of datagrams like [ICRC]. It remembers the state of the CRC that
// datagrams of one path and length share, such as the datagrams of a train. The zero value is ready to
// use.
type Sealer struct {
	start  start
	joined [128]byte // see join
}

// ICRC returns the same as the function ICRC.
func (s *Sealer) ICRC(p *Path, parts ...[]byte) uint32 {
	n := ICRCLen
	for _, part := range parts {
		n += len(part)
	}
	bth := parts[0][:BTHLen]
	taken := s.join(parts)
	if taken == 0 || p.ID >= lowIDs {
		return updateAll(s.start.crc(p, bth, n), parts)
	}
	crc := update(^s.start.prefix(p, bth, n), s.joined[:len(parts[0])-bthResv8a+taken])
	crc = update(crc, parts[1][taken:])
	for _, part := range parts[2:] {
		crc = update(crc, part)
	}
	return crc
}

// join copies the rest of the header, starting with the byte that routers may change, and enough
// of the second piece to make whole blocks for the assembly of hash/crc32, which is several
// times faster. It returns how many bytes of the second piece it copied, or 0 if they do not
// fit or if the header is too short for a gain.
func (s *Sealer) join(parts [][]byte) (taken int) {
	if len(parts) < 2 {
		return 0
	}
	rest := parts[0][bthResv8a:]
	size := max(minAssembly, (len(rest)+assemblyBlock-1)&^(assemblyBlock-1))
	taken = size - len(rest)
	if len(rest) < minAssembly/2 || size > len(s.joined) || taken > len(parts[1]) {
		return 0
	}
	n := copy(s.joined[:], rest)
	copy(s.joined[n:size], parts[1])
	s.joined[0] = 0xff
	return taken
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
