package guard_test

import (
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/hca/soft/memfabric"
)

// loop is a QP in RTS whose sends the fabric drops, because no port has the address.
type loop struct {
	dev  hca.Device
	pd   hca.PD
	send hca.CQ
	mr   hca.MR
	ah   hca.AH
	qp   hca.QP
	wrs  []hca.SendWR
}

const loopBatch = 32

func newLoop(t testing.TB, wrap func(hca.Device) hca.Device) *loop {
	t.Helper()
	dev, _ := openSoft(t, memfabric.New(1), "a", addrA)
	l := &loop{dev: wrap(dev)}
	l.pd = have(l.dev.AllocPD())(t)
	l.send = have(l.dev.CreateCQ(hca.CQSpec{Entries: 8 * loopBatch}))(t)
	l.mr = have(l.pd.AllocMR(4096, hca.AccessLocalWrite))(t)
	l.ah = have(l.pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(addrB)}))(t)
	spec := hca.QPSpec{SendWRs: 2 * loopBatch, RecvWRs: 2 * loopBatch, SendSGEs: 1, RecvSGEs: 1, SignalAll: true}
	l.qp = have(l.pd.CreateQP(spec, l.send, l.send))(t)
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		a := hca.QPAttr{State: s + 1, Port: 1, QKey: 1}
		if err := l.qp.Modify(a, hca.AttrState|hca.UDTransition(s, s+1).Required); err != nil {
			t.Fatal(err)
		}
	}
	for i := range loopBatch {
		l.wrs = append(l.wrs, hca.SendWR{
			ID: uint64(i), SGList: []hca.SGE{l.mr.SGE(0, 64)}, UD: hca.UDDest{AH: l.ah, QPN: 5, QKey: 1},
		})
	}
	return l
}

func (l *loop) close() {
	for _, c := range []closer{l.ah, l.qp, l.send, l.mr, l.pd, l.dev} {
		_ = c.Close()
	}
}

// round posts a batch and polls its completions.
func (l *loop) round(t testing.TB, wc []hca.WC) {
	if n, err := l.qp.PostSend(l.wrs); n != loopBatch || err != nil {
		t.Fatal(n, err)
	}
	if n, err := l.send.Poll(wc); n != loopBatch || err != nil {
		t.Fatal(n, err)
	}
}

var wraps = []struct {
	name string
	wrap func(hca.Device) hca.Device
}{
	{"bare", func(d hca.Device) hca.Device { return d }},
	{"guarded", func(d hca.Device) hca.Device { return guard.Wrap(d, guard.Options{}) }},
}

func TestNoAllocations(t *testing.T) {
	for _, w := range wraps {
		l, wc := newLoop(t, w.wrap), make([]hca.WC, loopBatch)
		recv := []hca.RecvWR{{SGList: []hca.SGE{l.mr.SGE(0, 64)}}}
		if got := testing.AllocsPerRun(100, func() { l.round(t, wc) }); got != 0 {
			t.Errorf("%s: %v allocations of a round", w.name, got)
		}
		if got := testing.AllocsPerRun(10, func() { _, _ = l.qp.PostRecv(recv) }); got != 0 {
			t.Errorf("%s: %v allocations of a receive", w.name, got)
		}
		l.close()
	}
}

// The cost of the guard per posted and completed request is the difference between the two,
// divided by loopBatch.
func BenchmarkRound(b *testing.B) {
	for _, w := range wraps {
		b.Run(w.name, func(b *testing.B) {
			l, wc := newLoop(b, w.wrap), make([]hca.WC, loopBatch)
			defer l.close()
			b.ReportAllocs()
			for b.Loop() {
				l.round(b, wc)
			}
		})
	}
}

// The cost of the guard with a backend that costs almost nothing.
func BenchmarkGuardAlone(b *testing.B) {
	r := newRig(b, guard.Options{})
	defer r.close()
	wrs, wc := make([]hca.SendWR, rigDepth), make([]hca.WC, rigDepth)
	for i := range wrs {
		wrs[i] = hca.SendWR{ID: uint64(i), Flags: hca.SendSignaled, UD: hca.UDDest{AH: r.ah}}
	}
	wcs := done(hca.WCSend, 0, 1, 2, 3, 4, 5, 6, 7)
	b.ReportAllocs()
	for b.Loop() {
		if n, err := r.qp.PostSend(wrs); n != rigDepth {
			b.Fatal(err)
		}
		r.inner.send.wcs = wcs
		if n, err := r.send.Poll(wc); n != rigDepth {
			b.Fatal(n, err)
		}
	}
}
