package record

import (
	"fmt"
	"testing"

	"ipoibd/hca"
)

// BenchmarkRecorder shows what a record costs its producer, and its consumer at each level.
func BenchmarkRecorder(b *testing.B) {
	for _, n := range []int{64, 1400, 60000} {
		msg := tcp(n, true)
		wr := sendTo(hca.AHSpec{Global: true, DGID: gidB, HopLimit: 64}, 0x1234)
		if n > 1400 {
			wr.LSO = hca.LSO{Header: msg[:44], MSS: 1400}
		}
		r := newRecorder(&self, nil)
		b.Run(fmt.Sprintf("put/%d", n), func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				r.Sent(at, wr, msg)
				r.Release()
			}
		})
		r.Sent(at, wr, msg)
		for l := IPoIB; l < NumLevel; l++ {
			b.Run(fmt.Sprintf("build/%v/%d", l, n), func(b *testing.B) {
				b.SetBytes(int64(n))
				for b.Loop() {
					if err := builder.Build(r.Peek(), l, func([]byte) error { return nil }); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
