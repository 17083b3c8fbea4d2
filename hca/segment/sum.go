package segment

import (
	"math/bits"

	"ipoibd/hca/checksum"
)

// Sum is the ones' complement sum of the bytes added to it (RFC 1071). The zero value is
// the sum of no bytes.
type Sum struct {
	sum uint64 // of 16-bit words in network byte order
	odd bool   // an odd number of bytes was added
}

// Add adds the next bytes, of any number.
func (s *Sum) Add(b []byte) {
	w := checksum.Sum(b, 0)
	if s.odd { // b starts in the middle of a word
		w = bits.ReverseBytes16(w)
	}
	s.sum += uint64(w)
	s.odd = s.odd != (len(b)%2 == 1)
}
