package ipoib

import "ipoibd/hca/checksum"

// icmp6Checksum returns the Internet checksum of an ICMPv6 message directly
// behind its IPv6 header, including the pseudo-header (RFC 4443 section 2.3,
// RFC 8200 section 8.1). It is zero if the message's checksum field is correct.
func icmp6Checksum(packet []byte) uint16 {
	message := packet[ipv6HeaderLen:]
	pseudo := checksum.Pseudo(packet[ipv6Source:ipv6HeaderLen], protoICMPv6, len(message))
	return ^checksum.Sum(message, pseudo)
}
