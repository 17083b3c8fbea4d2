package checksum

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
)

// naive is RFC 1071, section 4.1.
func naive(b []byte, sum uint16) uint16 {
	acc := uint64(sum)
	for ; len(b) > 1; b = b[2:] {
		acc += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		acc += uint64(b[0]) << 8
	}
	for acc > 0xffff {
		acc = acc>>16 + acc&0xffff
	}
	return uint16(acc)
}

// Every length, alignment and kind of carry gives the sum of the RFC, by each of the loops.
func TestSum(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test
	buf := make([]byte, 1<<11)
	for _, fill := range []func() byte{
		func() byte { return byte(r.Uint32()) },
		func() byte { return 0xff },
		func() byte { return 0 },
		func() byte { return byte(r.Uint32()) | 0xfe },
	} {
		for i := range buf {
			buf[i] = fill()
		}
		for n := range len(buf) - 64 {
			b := buf[n%61:][:n]
			sum := uint16(r.Uint32())
			if got, want := Sum(b, sum), naive(b, sum); got != want {
				t.Fatalf("%d bytes and %#04x: %#04x, want %#04x", n, sum, got, want)
			}
			wide, k := sumBlocks(b)
			if got, want := Fold(wide), naive(swapped(b[:k]), 0); got != want {
				t.Fatalf("%d bytes in Go: %#04x, want %#04x", n, got, want)
			}
		}
	}
}

func swapped(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = b[i^1]
	}
	return out
}

// RFC 1071, section 3.
func TestSumOfTheRFC(t *testing.T) {
	if got := Sum([]byte{0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7}, 0); got != 0xddf2 {
		t.Errorf("%#04x, want 0xddf2", got)
	}
}

func FuzzSum(f *testing.F) {
	f.Add([]byte("an odd number of bytes "), uint16(0xffff))
	f.Add(make([]byte, 200), uint16(0))
	f.Fuzz(func(t *testing.T, b []byte, sum uint16) {
		if got, want := Sum(b, sum), naive(b, sum); got != want {
			t.Errorf("%#04x, want %#04x", got, want)
		}
	})
}
