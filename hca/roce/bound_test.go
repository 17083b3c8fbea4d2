package roce_test

import (
	"bytes"
	"fmt"
	"testing"

	"ipoibd/hca/roce"
	"ipoibd/scripts/bench/bound"
)

// BenchmarkBound compares the codec and the ICRC of a datagram with what the machine can do.
// The datagrams carry 64 bytes, or what the MTUs 1444, 2044 and 4092 do.
func BenchmarkBound(b *testing.B) {
	b.Run("headers/put", func(b *testing.B) {
		h, d, dst := roce.BTH{Opcode: roce.OpcodeUDSendOnly}, roce.DETH{}, make([]byte, roce.HeaderLen)
		for b.Loop() {
			h.PSN++
			h.Put(dst)
			d.Put(dst[roce.BTHLen:])
		}
		bound.Report(b, bound.Copy(roce.HeaderLen))
	})
	b.Run("headers/parse", func(b *testing.B) {
		f := synthetic(newRand(9), path4, 2048)
		for b.Loop() {
			_ = new(roce.UDSend).Parse(f.datagram)
		}
		bound.Report(b, bound.Copy(roce.HeaderLen))
	})
	for _, n := range []int{64, 1448, 4096} {
		f := synthetic(newRand(9), path4, n)
		body := f.datagram[:len(f.datagram)-roce.ICRCLen]
		b.Run(fmt.Sprintf("ICRC/%d", n), func(b *testing.B) {
			for b.Loop() {
				roce.ICRC(&f.path, body)
			}
			bound.Report(b, bound.CRC(len(f.datagram)))
		})
		b.Run(fmt.Sprintf("ICRC-of-train/%d", n), func(b *testing.B) {
			var s roce.Sealer
			path := f.path
			for b.Loop() {
				path.ID = (path.ID + 1) % 64
				s.Seal(&path, f.datagram)
			}
			bound.Report(b, bound.CRC(len(f.datagram)))
		})
		b.Run(fmt.Sprintf("verify-train/%d", n), func(b *testing.B) {
			var train [64][]byte
			end := len(f.datagram) - roce.ICRCLen
			for id := range train {
				path, d := f.path, bytes.Clone(f.datagram)
				path.ID = uint16(id)
				roce.PutICRC(d[end:], roce.ICRC(&path, d[:end]))
				train[id] = d
			}
			var v roce.Verifier
			i := 0
			for b.Loop() {
				v.Verify(&f.path, false, train[i%len(train)])
				i++
			}
			bound.Report(b, bound.CRC(len(f.datagram)))
		})
	}
}
