package record

import (
	"encoding/binary"
	"testing"

	"ipoibd/hca"
)

// FuzzReceived gives the builder arbitrary receives: each packet must have the lengths that its
// headers state, and RoCE packets parse and have their ICRC.
func FuzzReceived(f *testing.F) {
	f.Add(area("192.0.2.2", "192.0.2.1", 0, 64, 1, message), uint8(1), uint16(0), uint16(0))
	f.Add(area("fe80::b", "ff12::1", 0, 64, 1, message), uint8(1), uint16(0), uint16(0))
	f.Add(area("192.0.2.2", "192.0.2.1", 0, 64, 1, tcp(3000, true)), uint8(3), uint16(3), uint16(1000))
	f.Add(make([]byte, 44), uint8(0), uint16(2), uint16(1))
	r := newRecorder(&self, nil)
	f.Fuzz(func(t *testing.T, buf []byte, flags uint8, segments, mss uint16) {
		wc := received(buf)
		wc.Flags, wc.LRO = hca.WCFlags(flags), hca.LRO{Segments: int(segments), MSS: int(mss)}
		for l := IPoIB; l < NumLevel; l++ {
			r.Received(at, wc, buf)
			for _, p := range packets(t, r, l) {
				switch l {
				case RoCE:
					checkRoCE(t, p)
				case InfiniBand:
					if n := int(binary.BigEndian.Uint16(p[erfLen+4:])); n != lrhMaxWords && n*wordLen != len(p)-erfLen-vcrcLen {
						t.Errorf("LRH states %d words, there are %d bytes", n, len(p)-erfLen-vcrcLen)
					}
				default:
					if len(p) < hca.GRHLen {
						t.Errorf("%d bytes", len(p))
					}
				}
			}
		}
	})
}
