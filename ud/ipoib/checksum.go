package ipoib

import "encoding/binary"

// icmp6Checksum returns the Internet checksum of an ICMPv6 message directly
// behind its IPv6 header, including the pseudo-header (RFC 4443 section 2.3,
// RFC 8200 section 8.1). It is zero if the message's checksum field is correct.
func icmp6Checksum(packet []byte) uint16 {
	message := packet[ipv6HeaderLen:]
	sum := uint32(len(message)) + protoICMPv6
	sum += sum16(packet[ipv6Source:ipv6HeaderLen]) + sum16(message)
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// sum16 adds up 16-bit words; an odd last byte is padded with zero. It cannot
// overflow below 128 KiB, and an IPv6 payload has at most 64 KiB.
func sum16(b []byte) (sum uint32) {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}
