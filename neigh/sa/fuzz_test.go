package sa

import (
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/mad"
)

// FuzzReceived gives a client with open requests two arbitrary MADs. The client accounts for them, and what it reports
// is valid whatever they contain.
func FuzzReceived(f *testing.F) {
	s := newSubnet()
	s.hosts[hostOf(7)] = 107
	for _, a := range openRequests(newBench(f, 1)) {
		answer := s.answer(a.MAD)
		f.Add(answer, answer, uint16(1), uint32(1))
		busy := append([]byte(nil), answer...)
		busy[5] = 1
		f.Add(busy, answer, uint16(1), uint32(1))
	}
	f.Add([]byte{}, make([]byte, mad.Len), uint16(1), uint32(2))
	f.Fuzz(func(t *testing.T, first, second []byte, slid uint16, qpn uint32) {
		b := newBench(t, 1)
		openRequests(b)
		for _, raw := range [][]byte{first, second} {
			for _, a := range b.step(Received{MAD: raw, SLID: slid, SrcQPN: hca.QPN(qpn)}) {
				checkReported(t, a, slid == 1 && qpn == 1)
			}
			b.next(b.now.Add(time.Second))
		}
	})
}

// openRequests opens a request of each kind, and returns its MAD.
func openRequests(b *bench) (sends []Send) {
	for _, ev := range []Event{
		activePort,
		Join{Owner: 1, MGID: allOf(0xffff)},
		Join{Owner: 1, MGID: groupOf(1, 0xffff)},
		WantPath{PathKey{DGID: hostOf(7), PKey: 0xffff}},
	} {
		for _, a := range b.step(ev) {
			sends = append(sends, a.(Send))
		}
	}
	return sends
}

func checkReported(t *testing.T, a Action, fromSA bool) {
	switch a := a.(type) {
	case Joined:
		g := a.Group
		if a.MGID != allOf(0xffff) || g.MLID < 0xc000 || g.MLID == 0xffff || !g.MTU.Valid() || !g.Rate.Known() {
			t.Fatalf("%+v", a)
		}
	case PathFound:
		if a.Path.DLID == 0 || a.Path.DLID >= 0xc000 || !a.Path.MTU.Valid() || a.Path.SL > 15 {
			t.Fatalf("%+v", a)
		}
	}
	if !fromSA {
		t.Fatalf("%+v, from elsewhere", a)
	}
}
