package coalesce

import (
	"fmt"
	"testing"

	"ipoibd/scripts/bench/bound"
)

// BenchmarkBound compares the joining of a batch of 64 segments of one flow with a read of their
// bytes, for the checksums, or of their headers if the device has verified the checksums.
func BenchmarkBound(b *testing.B) {
	for _, c := range []struct {
		name  string
		first segment
	}{{"TCP4", tcp4()}, {"UDP6", udp6()}} {
		for _, size := range []int{1388, 4036} {
			for _, verified := range []bool{false, true} {
				name := fmt.Sprintf("join-64/%s/%d", c.name, size)
				if verified {
					name += "/verified"
				}
				b.Run(name, func(b *testing.B) {
					s := c.first
					s.payload, s.verifiedByHW = data(size), verified
					in := frames(train(s, batch)...)
					benchmark(b, in)
					touched := len(in[0])
					if verified {
						touched -= size
					}
					bound.Report(b, bound.Times(batch, bound.Read(touched)))
				})
			}
		}
	}
}
