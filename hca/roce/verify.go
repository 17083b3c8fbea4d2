package roce

import (
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"net/netip"
)

// Match says how well an ICRC matched.
type Match uint8

// How an ICRC matched, and what part of random damage passes so.
const (
	NoMatch      Match = iota // the datagram is damaged, or its path is not what it seems
	MatchKnownID              // nothing was guessed: 2^-32
	MatchLowID                // with an identification of 0 to 63: 2^-26
	MatchSolved               // with any other identification: 2^-16
	// NumMatch bounds the enumeration for total tables.
	NumMatch
)

var matchNames = [NumMatch]string{"none", "known_id", "low_id", "solved"}

func (m Match) String() string {
	if m >= NumMatch {
		return "unknown"
	}
	return matchNames[m]
}

// lowIDs bounds the identifications that need no suspicion: 0 is what a UDP
// socket with DF sends, and a segment of a UDP_SEGMENT batch, which has at most
// 64 of them, carries its index.
const lowIDs = 64

// Verify checks the ICRC of a datagram, BTH to ICRC, which came along p. Where
// the IPv4 identification is not known, p.ID is ignored and the one that makes
// the ICRC match is returned, if there is one; else p.ID is returned. A datagram
// too short or too long to be one does not match. Datagram should not live on
// the stack, see [ICRC].
func Verify(p *Path, idKnown bool, datagram []byte) (Match, uint16) {
	if !p.is4() {
		idKnown = true // there is none
	}
	path := *p
	if !idKnown {
		path.ID = 0
	}
	diff, ok := mismatch(&path, datagram)
	switch {
	case !ok || idKnown && diff != 0:
		return NoMatch, p.ID
	case idKnown:
		return MatchKnownID, p.ID
	}
	return solveID(diff, len(datagram))
}

// solveID finds the identification that explains the difference to the ICRC
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

// SourceBehindNAT takes it that a NAT rewrote the IPv4 source address of a
// datagram, and nothing else, and returns the address that makes its ICRC match
// with identification p.ID (0 is what senders have where the receiver cannot see
// it). There is one for every datagram with a wrong ICRC, so a single answer
// means nothing; two damaged datagrams agree once in 2^32. It returns false for
// a right datagram, for IPv6 and for lengths that [Verify] refuses.
func SourceBehindNAT(p *Path, datagram []byte) (netip.Addr, bool) {
	diff, ok := mismatch(p, datagram)
	if !ok || diff == 0 || !p.is4() {
		return netip.Addr{}, false
	}
	src := p.Src.As4()
	change := rewind(diff, covered(ipv4SrcOffset, len(datagram)))
	binary.LittleEndian.PutUint32(src[:], binary.LittleEndian.Uint32(src[:])^change)
	return netip.AddrFrom4(src), true
}

// mismatch returns the ICRC received xor the ICRC computed, and whether the
// datagram has the length of one.
func mismatch(p *Path, datagram []byte) (uint32, bool) {
	if len(datagram) < BTHLen+ICRCLen || len(datagram) > maxDatagram {
		return 0, false
	}
	body, tail := datagram[:len(datagram)-ICRCLen], datagram[len(datagram)-ICRCLen:]
	crc := prefixCRC(p, body[:BTHLen], len(datagram))
	crc = crc32.Update(crc, crc32.IEEETable, body[BTHLen:])
	return crc ^ binary.LittleEndian.Uint32(tail), true
}

// covered is how many bytes the ICRC of an IPv4 datagram of n bytes covers from
// this offset of the IP header on.
func covered(ipOffset, n int) int { return ipv4Len - ipOffset + udpLen + n - ICRCLen }
