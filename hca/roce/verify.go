package roce

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Match says how an ICRC matched.
type Match uint8

// How an ICRC matched, with the probability that random damage passes this way.
const (
	NoMatch      Match = iota // the datagram is damaged, or something on the way rewrote its headers
	MatchKnownID              // with the known identification, or over IPv6: 2^-32
	MatchLowID                // with a solved identification of 0 to 63: 2^-26
	MatchSolved               // with any other solved identification: 2^-16
	// NumMatch is the number of values, for tables.
	NumMatch
)

var matchNames = [NumMatch]string{"none", "known_id", "low_id", "solved"}

func (m Match) String() string {
	if m >= NumMatch {
		return "unknown"
	}
	return matchNames[m]
}

// lowIDs bounds the identifications that are plausible: a UDP socket with DF sends
// 0, and a segment of a UDP_SEGMENT batch carries its index, which is below 64.
const (
	lowIDs    = 1 << lowIDBits
	lowIDBits = 6
)

// Verifier checks the ICRCs of datagrams. To be faster, it remembers the path, the length and the
// expected identification of a train, in which each identification is one above the previous one.
// The zero value is ready to use.
type Verifier struct {
	start start

	n      int    // length of the datagrams to which the fields below apply
	next   uint16 // expected identification
	known  uint16 // bits of an identification whose effect is known
	effect [lowIDBits]uint32
}

// Verify checks the ICRC of a datagram that arrived along p. If the IPv4 identification is not
// known, Verify sets p.ID to the identification with which the ICRC matches, or to 0. A
// datagram of an impossible length does not match. The datagram should not lie on the stack, see
// [ICRC].
func (v *Verifier) Verify(p *Path, idKnown bool, datagram []byte) (match Match) {
	if !idKnown {
		p.ID = 0
	}
	idKnown = idKnown || !p.is4() // IPv6 has no identification
	diff, ok := v.start.mismatch(p, datagram)
	switch {
	case !ok || idKnown && diff != 0:
		return NoMatch
	case idKnown:
		return MatchKnownID
	}
	match, p.ID = v.solveID(diff, len(datagram))
	return match
}

// solveID returns the same as the function solveID, but is faster within a train.
func (v *Verifier) solveID(diff uint32, n int) (Match, uint16) {
	if n == v.n && v.next&^v.known == 0 && v.effectOf(v.next) == diff {
		id := v.next
		v.next = (id + 1) % lowIDs
		return MatchLowID, id
	}
	match, id := solveID(diff, n)
	if match != MatchLowID {
		return match, id
	}
	if bits.OnesCount16(id) == 1 {
		if n != v.n {
			v.n, v.known = n, 0
		}
		v.known |= id
		v.effect[bits.TrailingZeros16(id)] = diff
	}
	if n == v.n {
		v.next = (id + 1) % lowIDs
	}
	return match, id
}

// effectOf returns the difference that an identification makes to the ICRC, which is the sum
// of the differences of its bits.
func (v *Verifier) effectOf(id uint16) (sum uint32) {
	for ; id != 0; id &= id - 1 {
		sum ^= v.effect[bits.TrailingZeros16(id)]
	}
	return sum
}

// solveID returns the identification that explains diff, the difference to the ICRC
// computed with identification 0, for a datagram of n bytes.
func solveID(diff uint32, n int) (Match, uint16) {
	if diff == 0 {
		return MatchLowID, 0
	}
	solution := rewind(diff, covered(ipv4IDOffset, n))
	id := bits.ReverseBytes16(uint16(solution))
	switch {
	case solution>>16 != 0:
		return NoMatch, 0
	case id < lowIDs:
		return MatchLowID, id
	}
	return MatchSolved, id
}

// SourceBehindNAT assumes that a NAT rewrote the IPv4 source address of a datagram
// and nothing else. It returns the source address that makes the ICRC match with
// identification p.ID (0 if the receiver cannot see the identification). Such an
// address exists for every datagram with a wrong ICRC, so a single answer proves
// nothing; two damaged datagrams yield the same address with probability 2^-32.
// SourceBehindNAT returns false if the ICRC is correct, for IPv6, and for lengths that
// [Verifier.Verify] refuses.
func SourceBehindNAT(p *Path, datagram []byte) (netip.Addr, bool) {
	diff, ok := new(start).mismatch(p, datagram)
	if !ok || diff == 0 || !p.is4() {
		return netip.Addr{}, false
	}
	src := p.Src.As4()
	change := rewind(diff, covered(ipv4SrcOffset, len(datagram)))
	binary.LittleEndian.PutUint32(src[:], binary.LittleEndian.Uint32(src[:])^change)
	return netip.AddrFrom4(src), true
}

// mismatch returns the received ICRC xor the computed one. It returns false if the datagram has an
// impossible length.
func (s *start) mismatch(p *Path, datagram []byte) (uint32, bool) {
	if len(datagram) < BTHLen+ICRCLen || len(datagram) > maxDatagram {
		return 0, false
	}
	body, tail := datagram[:len(datagram)-ICRCLen], datagram[len(datagram)-ICRCLen:]
	crc := s.crc(p, body[:BTHLen], len(datagram))
	crc = update(crc, body[BTHLen:])
	return crc ^ binary.LittleEndian.Uint32(tail), true
}

// covered returns how many bytes the ICRC of an IPv4 datagram of n bytes covers from
// ipOffset of the IP header on.
func covered(ipOffset, n int) int { return ipv4Len - ipOffset + udpLen + n - ICRCLen }
