package softqp

import (
	"bytes"
	"fmt"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/roce"
	"ipoibd/scripts/bench/bound"
)

// BenchmarkBound compares the engine's work for a message with the passes over its bytes that
// it cannot avoid: a CRC on send, and a read for the checksum of a segment; a copy on receive.
func BenchmarkBound(b *testing.B) {
	for _, mtu := range []int{1444, 2044, 4092} {
		n := mtu + hca.EncapLen
		b.Run(fmt.Sprintf("send/%d", mtu), func(b *testing.B) {
			r := rtsRig(b)
			r.env.GIDs[0].MaxPayload = n
			wr, ah := hca.SendWR{SGList: []hca.SGE{r.txSGE(0, n)}}, ahTo(peer4)
			b.ReportAllocs()
			for b.Loop() {
				sendOne(b, r, &wr, ah)
			}
			bound.Report(b, bound.CRC(n+roce.HeaderLen))
		})
		b.Run(fmt.Sprintf("send-large-30000/%d", mtu), func(b *testing.B) {
			const size = 30000
			r := rtsRig(b)
			r.env.GIDs[0].MaxPayload = n
			mss := n - len(tcpHeader)
			wr := hca.SendWR{SGList: []hca.SGE{r.txSGE(0, size)}, LSO: hca.LSO{Header: bytes.Clone(tcpHeader), MSS: mss}}
			ah := ahTo(peer4)
			b.ReportAllocs()
			for b.Loop() {
				sendOne(b, r, &wr, ah)
			}
			segments := (size + mss - 1) / mss
			bound.Report(b, bound.Read(size), bound.Times(segments, bound.CRC(size/segments+len(tcpHeader)+roce.HeaderLen)))
		})
		b.Run(fmt.Sprintf("receive/%d", mtu), func(b *testing.B) {
			r := rtsRig(b)
			recv := hca.RecvWR{SGList: []hca.SGE{r.rxSGE(0, hca.GRHLen+n)}}
			in := inbound(string(make([]byte, n)))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.PostRecv(&recv); err != nil {
					b.Fatal(err)
				}
				if reason := r.Deliver(r.env, in); reason != Passed || len(r.RecvDone()) != 1 {
					b.Fatal(reason)
				}
			}
			bound.Report(b, bound.Copy(hca.GRHLen+n))
		})
		b.Run(fmt.Sprintf("receive-large-30000/%d", mtu), func(b *testing.B) {
			const size = 30000
			r := lroRig(b, rigMem)
			mss := mtu - len(tcpHeader)
			var train []*Inbound
			for _, msg := range (flow{port: 1, flags: 0x10}.segments(b, size, mss)) {
				train = append(train, inbound(string(msg)))
			}
			recv := hca.RecvWR{SGList: []hca.SGE{r.rxSGE(0, rigMem)}}
			b.ReportAllocs()
			for b.Loop() {
				for _, in := range train {
					if reason := r.Deliver(r.env, in); reason != Passed {
						b.Fatal(reason)
					}
				}
				if wcs := r.RecvDone(); len(wcs) != 1 || r.PostRecv(&recv) != nil {
					b.Fatal(wcs)
				}
			}
			bound.Report(b, bound.Read(size), bound.Copy(size))
		})
	}
}

// sendOne carries one request from its post to its completion.
func sendOne(b *testing.B, r *rig, wr *hca.SendWR, ah *hca.AHSpec) {
	if err := r.PostSend(wr, ah); err != nil {
		b.Fatal(err)
	}
	r.Fill(r.env, nil, Limits{64, 65507}, &r.batch)
	r.Finish(&r.batch, len(r.batch.Trains()))
	if wcs := r.SendDone(); len(wcs) != 1 || wcs[0].Status != hca.WCSuccess {
		b.Fatalf("completions %v", wcs)
	}
}
