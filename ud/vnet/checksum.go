package vnet

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the one's complement sum (RFC 1071) of an earlier sum and of the big-endian
// 16-bit words of b. An odd last byte is padded with zero, so only the last part of a
// larger whole may have an odd length. The sum of data that includes a correct checksum is
// 0xffff.
func Sum(b []byte, sum uint16) uint16 {
	// The sum of words does not depend on their width, and that of words in the other byte
	// order is the same but for the order of its bytes (RFC 1071, section 2). So Sum adds
	// little-endian words of 64 bits with their carries, and folds and swaps at the end. The
	// chains of additions of two blocks do not depend on each other, so a processor carries
	// them out side by side. A chain that begins without a carry does not end with all ones
	// and a carry, so the last carry always fits.
	acc, carry := uint64(bits.ReverseBytes16(sum)), uint64(0)
	for len(b) >= 64 {
		w := (*[64]byte)(b) // one check of the bounds, since another one would spill the carry
		s, c := bits.Add64(binary.LittleEndian.Uint64(w[:]), binary.LittleEndian.Uint64(w[8:]), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[56:]), c)
		acc, c = bits.Add64(acc, s, c)
		acc += c
		b = b[64:]
	}
	for len(b) >= 8 {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), carry)
		b = b[8:]
	}
	var rest [8]byte
	copy(rest[:], b)
	acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(rest[:]), carry)
	return bits.ReverseBytes16(fold(acc + carry))
}

// PseudoSum returns the sum of the pseudo-header of a TCP or UDP message (RFC 9293 section
// 3.1, RFC 768, RFC 8200 section 8.1). addrs are the source and the destination address as
// they stand in the IP header; n is the length of the message in bytes.
func PseudoSum(addrs []byte, proto uint8, n int) uint16 {
	return Sum(addrs, fold(uint64(n)+uint64(proto)))
}

// fold returns the one's complement sum of the 16-bit words of v.
func fold(v uint64) uint16 {
	v = v>>32 + v&0xffffffff
	v = v>>32 + v&0xffffffff
	v = v>>16 + v&0xffff
	v = v>>16 + v&0xffff
	return uint16(v)
}
