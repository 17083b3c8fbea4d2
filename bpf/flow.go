package bpf

import (
	"encoding/binary"
	"math/bits"

	"golang.org/x/sys/unix"
)

// Flow returns the hash of the flow of a packet with an Ethernet type, as the programs compute it (flow.h): of its addresses,
// protocol and ports. It returns 0 for what is not IP. The packet may be truncated after the ports.
func Flow(etherType uint16, packet []byte) uint32 {
	const ipv4Header, ipv6Header = 20, 40
	switch {
	case etherType == unix.ETH_P_IP && len(packet) >= ipv4Header:
		hash := mix(mix(0, packet[12:]), packet[16:])
		if binary.BigEndian.Uint16(packet[6:])&0x3fff == 0 { // no fragment
			hash = mixTransport(hash, packet[9], packet, int(packet[0]&0xf)*4)
		}
		return finish(hash)
	case etherType == unix.ETH_P_IPV6 && len(packet) >= ipv6Header:
		hash := uint32(0)
		for at := 8; at < ipv6Header; at += 4 {
			hash = mix(hash, packet[at:])
		}
		switch next := packet[6]; next {
		case unix.IPPROTO_HOPOPTS, unix.IPPROTO_ROUTING, unix.IPPROTO_FRAGMENT, unix.IPPROTO_AH, unix.IPPROTO_DSTOPTS:
		default:
			hash = mixTransport(hash, next, packet, ipv6Header)
		}
		return finish(hash)
	}
	return 0
}

// mixTransport adds a protocol and, if it has ports, the ports.
func mixTransport(hash uint32, protocol uint8, packet []byte, at int) uint32 {
	hash = mixWord(hash, uint32(protocol))
	switch protocol {
	case unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_DCCP, unix.IPPROTO_SCTP, unix.IPPROTO_UDPLITE:
		if at+4 <= len(packet) {
			hash = mix(hash, packet[at:])
		}
	}
	return hash
}

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
