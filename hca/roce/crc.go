package roce

import (
	"encoding/binary"
	"hash/crc32"
)

// slices are the tables of the slicing-by-8 algorithm: slices[k][b] is the state
// after byte b and k zero bytes.
var slices = buildSlices()

func buildSlices() (t [8][256]uint32) {
	t[0] = *crc32.IEEETable
	for k := 1; k < len(t); k++ {
		for b, s := range t[k-1] {
			t[k][b] = t[0][uint8(s)] ^ s>>8
		}
	}
	return t
}

// updateState adds b to a CRC state, which is the complement of the CRC that
// hash/crc32 uses. Unlike in hash/crc32, b does not escape.
func updateState(s uint32, b []byte) uint32 {
	for ; len(b) >= 8; b = b[8:] {
		s = updateWord(s, binary.LittleEndian.Uint64(b))
	}
	for _, c := range b {
		s = slices[0][uint8(s)^c] ^ s>>8
	}
	return s
}

// updateWord adds the 8 bytes of a little-endian word to a CRC state.
func updateWord(s uint32, w uint64) uint32 {
	t := &slices
	lo, hi := s^uint32(w), uint32(w>>32)
	return t[7][uint8(lo)] ^ t[6][uint8(lo>>8)] ^ t[5][uint8(lo>>16)] ^ t[4][lo>>24] ^
		t[3][uint8(hi)] ^ t[2][uint8(hi>>8)] ^ t[1][uint8(hi>>16)] ^ t[0][hi>>24]
}

// The assembly of hash/crc32 processes whole blocks, and only inputs of at least minAssembly bytes.
const (
	assemblyBlock = 16
	minAssembly   = 64
)

// update adds b to a CRC. It uses updateState for the bytes that the assembly of hash/crc32
// does not process, because hash/crc32 would add them byte by byte.
func update(crc uint32, b []byte) uint32 {
	if n := len(b) &^ (assemblyBlock - 1); n >= minAssembly {
		crc, b = crc32.Update(crc, crc32.IEEETable, b[:n]), b[n:]
	}
	return ^updateState(^crc, b)
}

// polyOne is the polynomial 1: the coefficient of x^0 is bit 31.
const polyOne uint32 = 1 << 31

// mulX multiplies by x modulo the generator.
func mulX(a uint32) uint32 { return a>>1 ^ crc32.IEEE&-(a&1) }

// divX divides by x modulo the generator, which has a constant term, so that x
// has an inverse.
func divX(a uint32) uint32 {
	carry := a >> 31
	return (a^crc32.IEEE&-carry)<<1 | carry
}

// mul multiplies two polynomials modulo the generator.
func mul(a, b uint32) (product uint32) {
	for ; b != 0; b <<= 1 {
		product ^= a & -(b >> 31)
		a = mulX(a)
	}
	return product
}

// inverses[0][i] is x^-8i, inverses[1][i] is x^-8(256i).
var inverses = buildInverses()

func buildInverses() (t [2][256]uint32) {
	power := polyOne
	for i := range t[0] {
		t[0][i] = power
		for range 8 {
			power = divX(power)
		}
	}
	t[1][0] = polyOne
	for i := 1; i < len(t[1]); i++ {
		t[1][i] = mul(t[1][i-1], power) // x^-8(256)
	}
	return t
}

// rewind returns by how much two CRC states differed n bytes earlier, if they
// differ by diff now and those n bytes are equal on both sides. n is below 2^16.
//
// If instead the bytes right after that earlier point differ, at most four of
// them, then the result is their difference as a little-endian number.
func rewind(diff uint32, n int) uint32 {
	return mul(mul(diff, inverses[0][n&0xff]), inverses[1][n>>8])
}
