// Package checksum computes the Internet checksum (RFC 1071) at the speed of memory. It is
// pure. On amd64 with AVX2 an assembly loop sums 64 bytes at a time, three times as fast as
// the loop in Go, which every other processor uses.
package checksum

import (
	"encoding/binary"
	"math/bits"
)

// Sum returns the one's complement sum of an earlier sum and of the big-endian 16-bit words
// of b. An odd last byte is padded with zero, so only the last part of a larger whole may
// have an odd length. The sum is 0 only if all words are 0. The sum of data that includes a
// correct checksum is 0xffff.
//
// The sum does not depend on the width of the words, and the sum of words in the other byte
// order is the byte-swapped sum (RFC 1071, section 2). So Sum adds wider little-endian words,
// then folds the result and swaps its bytes.
func Sum(b []byte, sum uint16) uint16 {
	wide, n := sumWide(b)
	acc, carry := bits.Add64(wide, uint64(bits.ReverseBytes16(sum)), 0)
	all := b
	for b = b[n:]; len(b) >= 8; b = b[8:] {
		acc, carry = bits.Add64(acc, binary.LittleEndian.Uint64(b), carry)
	}
	var rest uint64
	switch {
	case len(b) == 0:
	case len(all) >= 8: // the last bytes of the last 8
		rest = binary.LittleEndian.Uint64(all[len(all)-8:]) >> (64 - 8*uint(len(b)))
	default:
		for i, c := range b {
			rest |= uint64(c) << (8 * i)
		}
	}
	acc, carry = bits.Add64(acc, rest, carry)
	// Adding the last carry cannot overflow: a sum that carried is not all ones.
	return bits.ReverseBytes16(Fold(acc + carry))
}

// Pseudo returns the sum of the pseudo-header of a TCP, UDP or ICMPv6 message (RFC 9293 section
// 3.1, RFC 768, RFC 8200 section 8.1). addrs are the source and the destination address as
// they are in the IP header; n is the length of the message in bytes.
func Pseudo(addrs []byte, proto uint8, n int) uint16 {
	return Sum(addrs, Fold(uint64(n)+uint64(proto)))
}

// Fold returns the one's complement sum of the 16-bit words of v.
func Fold(v uint64) uint16 {
	v = v>>32 + v&0xffffffff
	v = v>>32 + v&0xffffffff
	v = v>>16 + v&0xffff
	v = v>>16 + v&0xffff
	return uint16(v)
}

// sumBlocks is the loop in Go over the blocks of 64 bytes of b. It returns their sum and
// length.
func sumBlocks(b []byte) (acc uint64, n int) {
	for ; len(b) >= 64; b, n = b[64:], n+64 {
		w := (*[64]byte)(b) // a single bounds check: further ones would spill the carry
		s, c := bits.Add64(binary.LittleEndian.Uint64(w[:]), binary.LittleEndian.Uint64(w[8:]), 0)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(w[56:]), c)
		acc, c = bits.Add64(acc, s, c) // this chain of additions does not depend on that of the next block
		acc += c
	}
	return acc, n
}
