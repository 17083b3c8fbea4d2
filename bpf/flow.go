package bpf

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Flow returns the hash of the flow of a packet with an Ethernet type, as the programs compute it (flow.h): of its addresses,
// protocol and ports. It returns 0 for packets whose order the programs do not track (order.h): those that are not IP, or of a
// protocol that the fast path does not carry, neighbour discovery and DHCP. The packet may be truncated after the ports.
func Flow(etherType uint16, packet []byte) uint32 {
	const ipv4Header, ipv6Header = 20, 40
	switch {
	case etherType == unix.ETH_P_IP && len(packet) >= ipv4Header:
		hash := mix(mix(0, packet[12:]), packet[16:])
		if binary.BigEndian.Uint16(packet[6:])&0x3fff != 0 { // a fragment
			return finish(hash)
		}
		return withTransport(hash, packet[9], packet, int(packet[0]&0xf)*4)
	case etherType == unix.ETH_P_IPV6 && len(packet) >= ipv6Header:
		hash := uint32(0)
		for at := 8; at < ipv6Header; at += 4 {
			hash = mix(hash, packet[at:])
		}
		switch next := packet[6]; next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS:
			return finish(hash)
		default:
			return withTransport(hash, next, packet, ipv6Header)
		}
	}
	return 0
}

// withTransport adds a protocol and, if it has ports, the ports, and finishes the hash.
func withTransport(hash uint32, protocol uint8, packet []byte, at int) uint32 {
	hash = mixWord(hash, uint32(protocol))
	l4 := packet[min(at, len(packet)):]
	switch protocol {
	case unix.IPPROTO_TCP:
		if len(l4) >= 4 {
			hash = mix(hash, l4)
		}
	case unix.IPPROTO_UDP:
		if len(l4) < 4 || isDHCP(binary.BigEndian.Uint16(l4)) || isDHCP(binary.BigEndian.Uint16(l4[2:])) {
			return 0
		}
		hash = mix(hash, l4)
	case unix.IPPROTO_ICMP:
	case unix.IPPROTO_ICMPV6:
		if len(l4) == 0 || l4[0] != 128 && l4[0] != 129 { // no echo
			return 0
		}
	default:
		return 0
	}
	return finish(hash)
}

// isDHCP reports whether a UDP port is one of DHCP or DHCPv6.
func isDHCP(port uint16) bool { return port == 67 || port == 68 || port == 546 || port == 547 }

// mix adds the first word of some bytes, as a little-endian machine reads it.
func mix(hash uint32, b []byte) uint32 { return mixWord(hash, binary.LittleEndian.Uint32(b)) }

func mixWord(hash, word uint32) uint32 {
	hash ^= bits.RotateLeft32(word*0xcc9e2d51, 15) * 0x1b873593
	return bits.RotateLeft32(hash, 13)*5 + 0xe6546b64
}

func finish(hash uint32) uint32 {
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return hash ^ hash>>16
}
