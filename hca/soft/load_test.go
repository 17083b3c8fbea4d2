package soft

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/memfabric"
)

// pairOn opens two devices on one fabric.
func pairOn(t testing.TB) (a, b *rig) {
	f := memfabric.New(1)
	return newRigOn(t, f, "a", nil, testV4), newRigOn(t, f, "b", nil, testV4b)
}

// flow sends batches from one QP to the other and polls the completions.
type flow struct {
	from, to *rig
	sends    []hca.SendWR
	recvs    []hca.RecvWR
	wcs      []hca.WC
}

func newFlow(from, to *rig, ah hca.AH, batch, size int) *flow {
	f := &flow{from: from, to: to, wcs: make([]hca.WC, batch)}
	for i := range batch {
		f.sends = append(f.sends, hca.SendWR{
			SGList: []hca.SGE{from.mr.SGE(i*rigSlot, 20), from.mr.SGE(i*rigSlot+20, size-20)},
			UD:     hca.UDDest{AH: ah, QPN: to.qp.Num(), QKey: rigQKey},
		})
		f.recvs = append(f.recvs, hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{to.mr.SGE(i*rigSlot, rigSlot)}})
	}
	return f
}

// round carries one batch from end to end.
func (f *flow) round(t testing.TB) {
	if _, err := f.to.qp.PostRecv(f.recvs); err != nil {
		t.Fatal(err)
	}
	if _, err := f.from.qp.PostSend(f.sends); err != nil {
		t.Fatal(err)
	}
	f.drain(t, f.from.send)
	f.drain(t, f.to.recv)
}

// drain polls the completions of a whole batch.
func (f *flow) drain(t testing.TB, cq hca.CQ) { f.drainN(t, cq, len(f.sends)) }

// drainN polls n completions.
func (f *flow) drainN(t testing.TB, cq hca.CQ, n int) {
	for got := 0; got < n; {
		if err := cq.Arm(); err != nil {
			t.Fatal(err)
		}
		k, err := cq.Poll(f.wcs)
		if err != nil {
			t.Fatal(err)
		}
		if got += k; k == 0 {
			if err := cq.Wait(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Carrying a message from post to completion allocates nothing at either end.
func TestNoAllocations(t *testing.T) {
	a, b := pairOn(t)
	ah := a.ah(testV4b)
	f := newFlow(a, b, ah, 32, 1448)
	for range 20 {
		f.round(t) // until all free lists are long enough
	}
	if n := testing.AllocsPerRun(200, func() { f.round(t) }); n != 0 {
		t.Errorf("%v allocations per batch of %d", n, len(f.sends))
	}
	_ = ah.Close()
	a.close()
	b.close()
}

// A message to the sender's own port causes no allocation either.
func TestNoAllocationsLooped(t *testing.T) {
	a, b := pairOn(t)
	ah := a.ah(testV4)
	f := newFlow(a, a, ah, 8, 100)
	if n := testing.AllocsPerRun(200, func() { f.round(t) }); n != 0 {
		t.Errorf("%v allocations per batch of %d", n, len(f.sends))
	}
	_ = ah.Close()
	a.close()
	b.close()
}

func BenchmarkRoundTrip(b *testing.B) {
	for _, size := range []int{64, 1448} {
		b.Run("", func(b *testing.B) {
			x, y := pairOn(b)
			f := newFlow(x, y, x.ah(testV4b), 32, size)
			b.SetBytes(int64(size * 32))
			b.ReportAllocs()
			for b.Loop() {
				f.round(b)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/32, "ns/message")
		})
	}
}

// Two QPs on one port send to each other and to themselves, while other goroutines
// change states, close memory and query. Nothing hangs, and every post completes or is
// dropped by a reset.
func TestConcurrentUse(t *testing.T) {
	a, b := pairOn(t)
	second := *a
	second.qp = have(a.pd.CreateQP(a.qp.Spec(), a.send, a.recv))(t)
	second.up()
	var wg, drains sync.WaitGroup
	stop := make(chan struct{})
	ah := a.ah(testV4)
	for _, e := range []struct {
		from *rig
		ah   hca.AH
		to   hca.QPN
	}{{a, ah, second.qp.Num()}, {&second, ah, a.qp.Num()}} {
		wg.Go(func() { e.from.churnSends(e.ah, e.to) })
		wg.Go(func() { e.from.churnRecvs() })
		wg.Go(func() { e.from.churnStates() })
	}
	wg.Go(func() { a.churnMemory() })
	drains.Go(func() { drainCQ(stop, a.send) })
	drains.Go(func() { drainCQ(stop, a.recv) })
	wg.Wait()
	close(stop)
	drains.Wait()
	if err := second.qp.Close(); err != nil {
		t.Error(err)
	}
	_ = ah.Close()
	a.close()
	b.close()
}

// churn is how often each goroutine of TestConcurrentUse repeats its operation.
const churn = 1000

func (r *rig) churnSends(ah hca.AH, to hca.QPN) {
	wr := []hca.SendWR{{SGList: []hca.SGE{r.mr.SGE(0, 10)}, UD: hca.UDDest{AH: ah, QPN: to, QKey: rigQKey}}}
	for i := range churn {
		if wr[0].LSO = (hca.LSO{}); i%3 == 0 {
			wr[0].LSO = hca.LSO{Header: tcpHeader, MSS: 4}
		}
		_, _ = r.qp.PostSend(wr) // refused, flushed or sent
	}
}

// churnRecvs posts receives, and occasionally one that is too short.
func (r *rig) churnRecvs() {
	for i := range churn {
		size := rigSlot
		if i%50 == 0 {
			size = 20
		}
		_, _ = r.qp.PostRecv([]hca.RecvWR{{SGList: []hca.SGE{r.mr.SGE(0, size)}}})
	}
}

// churnStates brings the QP up repeatedly, whatever its state.
func (r *rig) churnStates() {
	for range churn / 10 {
		if err := r.qp.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState); err != nil {
			r.Error(err)
		}
		for s := hca.QPReset; s < hca.QPRTS; s++ {
			_ = r.qp.Modify(hca.QPAttr{State: s + 1, Port: 1, QKey: rigQKey},
				hca.AttrState|hca.UDTransition(s, s+1).Required) // refused if the QP failed in between
		}
		_ = have(r.qp.Query())(r)
	}
}

func (r *rig) churnMemory() {
	for range churn / 10 {
		mr, err := r.pd.AllocMR(4096, hca.AccessLocalWrite)
		if err == nil {
			err = mr.Close()
		}
		if err != nil {
			r.Error(err)
		}
	}
}

// drainCQ polls, so that the other goroutines do not overrun the CQ.
func drainCQ(stop chan struct{}, cq hca.CQ) {
	wc := make([]hca.WC, 256)
	for {
		select {
		case <-stop:
			return
		default:
			_, _ = cq.Poll(wc)
			runtime.Gosched()
		}
	}
}
