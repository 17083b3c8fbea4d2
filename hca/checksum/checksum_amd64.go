package checksum

import "golang.org/x/sys/cpu"

// minAVX2 is the shortest input in bytes for which the assembly loop is faster.
const minAVX2 = 128

// sumWide returns the sum of a prefix of b, and the length of that prefix.
func sumWide(b []byte) (sum uint64, n int) {
	if !cpu.X86.HasAVX2 || len(b) < minAVX2 {
		return sumBlocks(b)
	}
	n = len(b) &^ 63
	return sumAVX2(&b[0], n), n
}

// sumAVX2 returns the sum of the n bytes at p, as little-endian words of 32 bits. n is a
// multiple of 64, from 64 to 2^34.
//
//go:noescape
func sumAVX2(p *byte, n int) uint64
