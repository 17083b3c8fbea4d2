package segment

import (
	"encoding/binary"
	"math/bits"
)

// Sum is the ones' complement sum of the bytes added to it (RFC 1071). The zero value is
// the sum of no bytes.
type Sum struct {
	sum uint64 // of 16-bit words in network byte order
	odd bool   // an odd number of bytes was added
}

// Add adds the next bytes, of any number.
func (s *Sum) Add(b []byte) {
	w := fold(sum64(b))
	if s.odd { // the bytes are at the other places of their words
		w = bits.ReverseBytes16(w)
	}
	s.sum += uint64(w)
	s.odd = s.odd != (len(b)%2 == 1)
}

// fold folds a sum of words to 16 bits. The result is 0 only if all words are 0.
func fold(v uint64) uint16 {
	v = v>>32 + v&0xffffffff
	v = v>>32 + v&0xffffffff
	v = v>>16 + v&0xffff
	return uint16(v>>16 + v)
}

// sum64 returns a sum of b whose value modulo 2^16-1 is that of its words in network byte
// order. If the length is odd, a zero byte follows.
func sum64(b []byte) uint64 {
	var s, c uint64
	// Big-endian loads are a load and a byte swap; sums of words in the machine's order,
	// swapped once at the end, are the same (RFC 1071, section 2 B). The additions within a
	// block depend on each other, but not on those of the block before, so a processor carries
	// out several blocks side by side.
	le := binary.LittleEndian
	for len(b) >= 64 {
		w := (*[64]byte)(b) // one check of the bounds for all words
		t, c := bits.Add64(le.Uint64(w[:]), le.Uint64(w[8:]), 0)
		t, c = bits.Add64(t, le.Uint64(w[16:]), c)
		t, c = bits.Add64(t, le.Uint64(w[24:]), c)
		t, c = bits.Add64(t, le.Uint64(w[32:]), c)
		t, c = bits.Add64(t, le.Uint64(w[40:]), c)
		t, c = bits.Add64(t, le.Uint64(w[48:]), c)
		t, c = bits.Add64(t, le.Uint64(w[56:]), c)
		s, c = bits.Add64(s, t, c)
		s += c // fits: t and the carry out of its block are at most 2^64-1 together
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, le.Uint64(b), 0)
		s += c
		b = b[8:]
	}
	var tail uint64
	for i, x := range b {
		tail |= uint64(x) << (8 * i)
	}
	s, c = bits.Add64(s, tail, 0)
	return uint64(bits.ReverseBytes16(fold(s + c)))
}
