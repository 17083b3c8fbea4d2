package vnet

import "ipoibd/hca/checksum"

// PseudoSum returns the sum of the pseudo-header of a TCP or UDP message (RFC 9293 section
// 3.1, RFC 768, RFC 8200 section 8.1). addrs are the source and the destination address as
// they stand in the IP header; n is the length of the message in bytes.
func PseudoSum(addrs []byte, proto uint8, n int) uint16 {
	return checksum.Sum(addrs, checksum.Fold(uint64(n)+uint64(proto)))
}
