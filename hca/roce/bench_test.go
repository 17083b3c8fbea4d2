package roce_test

import (
	"bytes"
	"fmt"
	"testing"

	"ipoibd/hca/roce"
)

// benchFrames runs f as a sub-benchmark with an IPv4 frame of each payload size.
func benchFrames(b *testing.B, f func(b *testing.B, f frame)) {
	for _, n := range []int{64, 1500, 4096} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			fr := synthetic(newRand(9), path4, n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			f(b, fr)
		})
	}
}

func BenchmarkICRC(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		for b.Loop() {
			roce.ICRC(&f.path, f.datagram)
		}
	})
}

// BenchmarkSealer is BenchmarkICRC for the datagrams of a train.
func BenchmarkSealer(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		var s roce.Sealer
		path := f.path
		for b.Loop() {
			path.ID = (path.ID + 1) % 64
			s.Seal(&path, f.datagram)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		for b.Loop() {
			new(roce.Verifier).Verify(&f.path, true, f.datagram)
		}
	})
}

func BenchmarkVerifySolved(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		path := f.path
		path.ID = 0xbeef
		end := len(f.datagram) - roce.ICRCLen
		roce.PutICRC(f.datagram[end:], roce.ICRC(&path, f.datagram[:end]))
		for b.Loop() {
			new(roce.Verifier).Verify(&f.path, false, f.datagram)
		}
	})
}

// BenchmarkVerifier is BenchmarkVerifySolved for the datagrams of a train.
func BenchmarkVerifier(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		var train [][]byte
		end := len(f.datagram) - roce.ICRCLen
		for id := range 64 {
			path, d := f.path, bytes.Clone(f.datagram)
			path.ID = uint16(id)
			roce.PutICRC(d[end:], roce.ICRC(&path, d[:end]))
			train = append(train, d)
		}
		var v roce.Verifier
		n := 0
		for b.Loop() {
			v.Verify(&f.path, false, train[n%64])
			n++
		}
	})
}

func BenchmarkUDSendParse(b *testing.B) {
	benchFrames(b, func(b *testing.B, f frame) {
		for b.Loop() {
			_ = new(roce.UDSend).Parse(f.datagram)
		}
	})
}
