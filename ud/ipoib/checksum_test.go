package ipoib

import (
	"testing"

	"pgregory.net/rapid"
)

// referenceChecksum computes the Internet checksum by its definition: the sum
// of the words modulo 65535, where a non-zero sum that is a multiple of 65535
// counts as 65535, not 0.
func referenceChecksum(packet []byte) uint16 {
	message := packet[ipv6HeaderLen:]
	sum := uint64(len(message) + 58)
	for i, b := range append(packet[8:40:40], message...) {
		sum += uint64(b) << (8 * (1 - i%2))
	}
	return ^uint16((sum-1)%65535 + 1)
}

func TestICMP6Checksum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		packet := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 0x7f, 0xfe, 0xff}), 40, 120).Draw(t, "packet")
		if got, want := icmp6Checksum(packet), referenceChecksum(packet); got != want {
			t.Fatalf("got %04x, want %04x", got, want)
		}
	})
}

// TestICMP6ChecksumExtremes covers sums that carry twice, and the largest sum.
func TestICMP6ChecksumExtremes(t *testing.T) {
	zeros := make([]byte, ipv6HeaderLen)
	largest := make([]byte, maxIPv6Len)
	for i := range largest {
		largest[i] = 0xff
	}
	for name, packet := range map[string][]byte{
		"sum of 1ffff":    append(zeros[:40:40], 0xff, 0xff, 0xff, 0xc2),
		"odd last byte":   append(zeros[:40:40], 0x12, 0x34, 0x56),
		"longest message": largest,
	} {
		if got, want := icmp6Checksum(packet), referenceChecksum(packet); got != want {
			t.Errorf("%s: got %04x, want %04x", name, got, want)
		}
	}
}
