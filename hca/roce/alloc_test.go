package roce_test

import (
	"bytes"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// Neither a correct frame nor a damaged one causes an allocation.
func TestAllocations(t *testing.T) {
	rng := newRand(8)
	var sealer roce.Sealer
	area := make([]byte, hca.GRHLen)
	for _, path := range []roce.Path{path4, path6} {
		good, bad := synthetic(rng, path, 1444), synthetic(rng, path, 1444)
		flipICRC(bad.datagram, 0x80000001)
		sent := bytes.Clone(good.datagram)
		end := len(sent) - roce.ICRCLen
		for name, f := range map[string]func(){
			"send": func() {
				(&roce.BTH{Opcode: roce.OpcodeUDSendOnly}).Put(sent)
				(&roce.DETH{QKey: 1}).Put(sent[roce.BTHLen:])
				p := roce.Path{Src: path.Src, Dst: path.Dst, SrcPort: 1}
				roce.PutICRC(sent[end:], roce.ICRC(&p, sent[:end]))
				sealer.Seal(&p, sent)
			},
			"receive": func() {
				p := roce.Path{Src: path.Src, Dst: path.Dst, SrcPort: path.SrcPort}
				_ = new(roce.UDSend).Parse(good.datagram)
				new(roce.Verifier).Verify(&p, false, good.datagram)
				roce.PutGRH(area, &p, 0, 64, len(good.datagram))
				_, _, _ = hca.ParseGRH(area, hca.NetworkUnknown)
			},
			"damaged": func() {
				p := roce.Path{Src: path.Src, Dst: path.Dst, SrcPort: path.SrcPort}
				_ = new(roce.UDSend).Parse(bad.datagram[:9])
				new(roce.Verifier).Verify(&p, false, bad.datagram)
				roce.SourceBehindNAT(&p, bad.datagram)
				_, _, _ = hca.ParseGRH(area[1:], hca.NetworkUnknown)
			},
		} {
			if n := testing.AllocsPerRun(100, f); n != 0 {
				t.Errorf("%s over %v: %v allocations, want none", name, path.Src, n)
			}
		}
	}
}
