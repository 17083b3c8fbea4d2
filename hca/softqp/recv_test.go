package softqp

import (
	"bytes"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/roce"
)

func TestDeliverRefusals(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Inbound)
		want  Reason
	}{
		"right":             {func(*Inbound) {}, Passed},
		"limited member":    {func(in *Inbound) { in.PKey = 0x7fff }, Passed},
		"other partition":   {func(in *Inbound) { in.PKey = 0x8001 }, DropPKey},
		"invalid P_Key":     {func(in *Inbound) { in.PKey = 0x8000 }, DropPKey},
		"other Q_Key":       {func(in *Inbound) { in.QKey = 1 }, DropQKey},
		"both keys":         {func(in *Inbound) { in.PKey, in.QKey = 1, 1 }, DropPKey},
		"exactly as long":   {func(in *Inbound) { *in = *inbound(string(make([]byte, 60))) }, Passed},
		"one byte too long": {func(in *Inbound) { *in = *inbound(string(make([]byte, 61))) }, FailRecvLength},
	} {
		r := rtsRig(t)
		r.recv(1, hca.GRHLen+60)
		in := inbound("payload")
		c.spoil(in)
		if got := r.Deliver(r.env, in); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	if got := rtsRig(t).Deliver(rtsRig(t).env, inbound("x")); got != DropNoRecv {
		t.Errorf("no receive posted: %v, want %v", got, DropNoRecv)
	}
}

func TestDeliverInEveryState(t *testing.T) {
	for s := hca.QPState(0); s < hca.NumQPState; s++ {
		r := rtsRig(t)
		r.recv(1, 100)
		r.becomeRecv(s)
		want := DropQPState
		if s.RecvQueue() == hca.QueueRuns {
			want = Passed
		}
		if got := r.Deliver(r.env, inbound("x")); got != want {
			t.Errorf("%v: %v, want %v", s, got, want)
		}
	}
}

// The GRH area, the payload and the completion are correct for receives of one piece and
// of several.
func TestDeliverPlaces(t *testing.T) {
	for _, list := range [][][2]int{
		{{0, 200}}, {{0, 40}, {100, 60}}, {{0, 1}, {50, 39}, {100, 0}, {200, 100}}, {{0, 41}, {100, 3}, {200, 3}},
	} {
		r := rtsRig(t)
		var wr hca.RecvWR
		for _, p := range list {
			wr.SGList = append(wr.SGList, r.rxSGE(p[0], p[1]))
		}
		if err := r.PostRecv(&wr); err != nil {
			t.Fatal(err)
		}
		in := inbound("")
		in.Payload, in.Len = [][]byte{[]byte("pay"), nil, []byte("load")}, 7
		if got := r.Deliver(r.env, in); got != Passed {
			t.Fatalf("%v: %v, want %v", list, got, Passed)
		}
		r.checkPlaced(list, in)
	}
}

func (r *rig) checkPlaced(list [][2]int, in *Inbound) {
	r.Helper()
	var got []byte
	for _, p := range list {
		got = append(got, r.rx[p[0]:p[0]+p[1]]...)
	}
	var grh [hca.GRHLen]byte
	roce.PutGRH(grh[:], &in.Path, in.TOS, in.TTL, in.UDPLen)
	if !bytes.Equal(got[:47], append(grh[:], "payload"...)) {
		r.Errorf("%v: placed %x, want the GRH and the payload", list, got[:47])
	}
	if bytes.Count(r.rx, []byte{0})+len(bytes.ReplaceAll(got[:47], []byte{0}, nil)) != len(r.rx) {
		r.Errorf("%v: bytes outside the receive were written", list)
	}
	want := hca.WC{
		Opcode: hca.WCRecv, Flags: hca.WCFlagGRH, ByteLen: 47, QPN: rigQPN, SrcQPN: 0x99, Network: hca.NetworkIPv4,
	}
	if wc := r.RecvDone(); len(wc) != 1 || wc[0] != want {
		r.Errorf("completion %+v, want %+v", wc, want)
	}
}

// A receive into memory that it must not write fails, and nothing is written.
func TestDeliverProtection(t *testing.T) {
	r := rtsRig(t)
	for name, sge := range map[string]hca.SGE{
		"read only":   r.txSGE(0, 100),
		"past end":    r.rxSGE(rigMem-99, 100),
		"unknown key": {Addr: rxBase, Length: 100, LKey: r.rxLKey + 1},
	} {
		r := rtsRig(t)
		if err := r.PostRecv(&hca.RecvWR{ID: 1, SGList: []hca.SGE{r.rxSGE(0, 50), sge}}); err != nil {
			t.Fatal(err)
		}
		if got := r.Deliver(r.env, inbound("x")); got != FailRecvAccess {
			t.Errorf("%s: %v, want %v", name, got, FailRecvAccess)
		}
		r.Settle()
		r.wantReceived(outcome{1, hca.WCLocProtErr})
		r.wantState(hca.QPErr)
		if bytes.Count(r.rx, []byte{0}) != len(r.rx) {
			t.Errorf("%s: something was written", name)
		}
	}
}
