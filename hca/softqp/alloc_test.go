package softqp

import (
	"testing"

	"ipoibd/hca"
)

// Neither a large send in a train nor a checksum allocates.
func TestNoAllocationsOfTrains(t *testing.T) {
	r := rtsRig(t)
	large := hca.SendWR{SGList: []hca.SGE{r.txSGE(0, 20000)}, LSO: hca.LSO{Header: tcpHeader, MSS: 1400}}
	copy(r.tx, tcpHeader)
	whole := hca.SendWR{SGList: []hca.SGE{r.txSGE(0, 700)}, Flags: hca.SendIPCsum}
	ah := ahTo(peer4)
	run := func() {
		if r.PostSend(&large, ah) != nil || r.PostSend(&whole, ah) != nil {
			t.Fatal("post failed")
		}
		r.Fill(r.env, nil, Limits{64, 65507}, &r.batch)
		r.Finish(&r.batch, len(r.batch.Trains()))
		if len(r.SendDone()) != 2 {
			t.Fatal("no completion")
		}
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

// Neither sending nor receiving a message allocates.
func TestNoAllocations(t *testing.T) {
	r := rtsRig(t)
	sge := []hca.SGE{r.txSGE(0, 20), r.txSGE(20, 1000)}
	wr := hca.SendWR{SGList: sge, UD: hca.UDDest{QPN: 9, QKey: 9}}
	recv := hca.RecvWR{SGList: []hca.SGE{r.rxSGE(0, 2000)}}
	in, ah := inbound("payload"), ahTo(peer4)
	run := func() {
		if r.PostSend(&wr, ah) != nil || r.PostRecv(&recv) != nil {
			t.Fatal("post failed")
		}
		r.Fill(r.env, nil, Limits{}, &r.batch)
		r.Finish(&r.batch, len(r.batch.Trains()))
		if r.Deliver(r.env, in) != Passed || len(r.SendDone()) != 1 || len(r.RecvDone()) != 1 {
			t.Fatal("no completion")
		}
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations per message", n)
	}
}

// Joining messages does not allocate.
func TestNoAllocationsOfLargeReceives(t *testing.T) {
	const size = rigMem
	r := lroRig(t, size)
	r.RecvDone()
	var train []*Inbound
	for _, msg := range (flow{port: 1, flags: 0x10}.segments(t, 15*1400, 1400)) {
		train = append(train, inbound(string(msg)))
	}
	recv := hca.RecvWR{SGList: []hca.SGE{r.rxSGE(0, size)}}
	run := func() {
		for _, in := range train {
			if r.Deliver(r.env, in) != Passed {
				t.Fatal("dropped")
			}
		}
		if wcs := r.RecvDone(); len(wcs) != 1 || wcs[0].LRO.Segments != len(train) || r.PostRecv(&recv) != nil {
			t.Fatalf("completions %+v", wcs)
		}
	}
	if n := testing.AllocsPerRun(1000, run); n != 0 {
		t.Errorf("%v allocations per train", n)
	}
}
