package neigh

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"ipoibd/scripts/bench/bound"
	"ipoibd/ud/ipoib"
)

// BenchmarkBound compares the lookups of the data path for random peers with one read of
// memory for each peer that the lookup cannot avoid: a cache line in the table.
func BenchmarkBound(b *testing.B) {
	for _, n := range sizes {
		bench := populated(b, n)
		order := rand.New(rand.NewPCG(1, 2)).Perm(max(n, 1<<16))
		macs, ends := make([]ipoib.MAC, 1<<16), make([]endpoint, 1<<16)
		for i := range macs {
			ends[i] = numbered(order[i] % n)
			macs[i] = bench.macOf(ends[i])
		}
		b.Run(fmt.Sprintf("lookup-to-send/%d", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				bench.snap.Unicast(macs[i%len(macs)])
				i++
			}
			bound.Report(b, bound.Access(n))
		})
		b.Run(fmt.Sprintf("lookup-of-sender/%d", n), func(b *testing.B) {
			i := 0
			for b.Loop() {
				bench.snap.PeerMAC(ends[i%len(ends)].key())
				i++
			}
			bound.Report(b, bound.Access(n))
		})
	}
}
