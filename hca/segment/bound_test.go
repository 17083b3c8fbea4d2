package segment

import (
	"fmt"
	"testing"

	"ipoibd/scripts/bench/bound"
)

// BenchmarkBound compares the cutting of a frame with 64,000 bytes of payload into segments
// for an MTU, with all headers and checksums, to one pass over the bytes.
func BenchmarkBound(b *testing.B) {
	for _, mtu := range []int{1444, 2044, 4092} {
		for _, c := range []struct {
			name    string
			v6, udp bool
		}{{"TCP4", false, false}, {"TCP6", true, false}, {"UDP4", false, true}, {"UDP6", true, true}} {
			if c.name != "TCP4" && mtu != 2044 {
				continue
			}
			b.Run(fmt.Sprintf("cut/%d/%s", mtu, c.name), func(b *testing.B) {
				const size = 64000
				f := &frame{v6: c.v6, udp: c.udp, lead: make([]byte, 4), src: make([]byte, 16), dst: make([]byte, 16), tcpOptions: make([]byte, 12)}
				if !c.v6 {
					f.src, f.dst = f.src[:4], f.dst[:4]
				}
				if c.udp {
					f.tcpOptions = nil
				}
				h := f.headers()
				mss := mtu + len(f.lead) - len(h)
				body, dst := make([]byte, size), make([]byte, MaxHeader)
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					var p Plan
					if err := p.Cut(h, len(f.lead), size, mss); err != nil {
						b.Fatal(err)
					}
					for i := range p.Segments() {
						var s Sum
						off, n := p.Payload(i)
						s.Add(body[off : off+n])
						p.Put(dst, i, s)
					}
				}
				bound.Report(b, bound.Read(size), bound.Times((size+mss-1)/mss, bound.Copy(len(h))))
			})
		}
	}
}
