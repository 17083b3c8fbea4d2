package ipoib

import "encoding/binary"

// Extension headers that a receiver skips to reach the upper layer (RFC 8200 section 4,
// RFC 4302 section 2). Other headers end the walk: Linux does not look for ICMPv6
// behind Mobility (135), HIP (139) and Shim6 (140), and the payload of ESP (50) and
// IPComp (108) cannot be read here.
const (
	extHopByHop       = 0
	extRouting        = 43
	extFragment       = 44
	extAuthentication = 51
	extDestination    = 60
)

// minExtensionLen is the length of the shortest extension header in bytes.
const minExtensionLen = 8

// maxExtensions bounds the walk. A sender puts at most 7 in a packet (RFC 8200
// section 4.1).
const maxExtensions = 8

// HidesND reports whether a receiver may find an ND message behind the extension
// headers of an IPv6 packet, where [TranslateND] does not translate it. RFC 6980
// section 5 requires receivers to ignore ND in fragments; Linux accepts it behind all
// other extension headers, and in fragments if so configured.
//
// A chain that ends before its upper layer, or has more than 8 headers, counts as
// hidden ND: after a first fragment the message may follow in a later one. Later
// fragments do not count, since they are useless without the first. Bytes behind the
// payload that the IPv6 header states are padding, which Linux cuts off (ip6_rcv_core):
// in a first fragment they would stand in for the bytes of a later one. HidesND is cheap
// enough for every frame: it walks the headers only of packets with the hop limit of ND.
func HidesND(packet []byte) bool {
	if len(packet) < ipv6HeaderLen || packet[ipv6HopLimit] != ndHopLimit || packet[0]>>4 != 6 {
		return false
	}
	next, rest := packet[ipv6NextHeader], packet[ipv6HeaderLen:]
	// A length of zero marks a jumbogram (RFC 2675 section 3).
	if size := int(binary.BigEndian.Uint16(packet[ipv6PayloadLen:])); size != 0 && size < len(rest) {
		rest = rest[:size]
	}
	for n := 0; ; n++ {
		switch {
		case next == protoICMPv6:
			return n > 0 && (len(rest) == 0 || ndFixedLen(rest[0]) != 0)
		case !isExtension(next):
			return false
		case n == maxExtensions || len(rest) < minExtensionLen:
			return true
		case next == extFragment && binary.BigEndian.Uint16(rest[2:])&^7 != 0:
			return false // not the first fragment
		}
		size := extensionLen(next, rest)
		if size > len(rest) {
			return true
		}
		next, rest = rest[0], rest[size:]
	}
}

func isExtension(header uint8) bool {
	switch header {
	case extHopByHop, extRouting, extFragment, extAuthentication, extDestination:
		return true
	}
	return false
}

// extensionLen returns the length in bytes of an extension header; b has at least
// minExtensionLen bytes.
func extensionLen(header uint8, b []byte) int {
	switch header {
	case extFragment:
		return 8
	case extAuthentication:
		return 4 * (int(b[1]) + 2)
	}
	return 8 * (int(b[1]) + 1)
}
