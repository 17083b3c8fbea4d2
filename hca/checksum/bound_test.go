package checksum

import (
	"fmt"
	"testing"

	"ipoibd/scripts/bench/bound"
)

// BenchmarkBound compares the checksum with a read of the same bytes.
func BenchmarkBound(b *testing.B) {
	for _, n := range []int{64, 1448, 2048, 4096, 64000} {
		b.Run(fmt.Sprintf("sum/%d", n), func(b *testing.B) {
			data := make([]byte, n)
			for b.Loop() {
				Sum(data, 0)
			}
			bound.Report(b, bound.Read(n))
		})
	}
}
