package guard_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

const rigDepth = 8

// rig is a guarded fake device with one object of each kind.
type rig struct {
	testing.TB
	fake       *fake
	dev        *guard.Device
	pd         hca.PD
	send, recv hca.CQ
	mr         hca.MR
	ah         hca.AH
	qp         hca.QP

	inner struct { // the fakes behind the guard
		send, recv *fakeCQ
		qp         *fakeQP
	}
}

// have returns v, or fails the test on an error.
func have[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// tap records the CQs and QPs that a backend creates.
type tap struct {
	*fake
	cqs []*fakeCQ
	qps []*fakeQP
}

func (b *tap) CreateCQ(s hca.CQSpec) (hca.CQ, error) {
	cq, err := b.fake.CreateCQ(s)
	if c, ok := cq.(*fakeCQ); ok {
		b.cqs = append(b.cqs, c)
	}
	return cq, err
}

func (b *tap) AllocPD() (hca.PD, error) {
	pd, err := b.fake.AllocPD()
	return &tapPD{pd, b}, err
}

type tapPD struct {
	hca.PD
	tap *tap
}

func (p *tapPD) CreateQP(s hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	qp, err := p.PD.CreateQP(s, send, recv)
	if q, ok := qp.(*fakeQP); ok {
		p.tap.qps = append(p.tap.qps, q)
	}
	return qp, err
}

var rigSpec = hca.QPSpec{SendWRs: rigDepth, RecvWRs: rigDepth, SendSGEs: 1, RecvSGEs: 1}

func newRig(t testing.TB, opts guard.Options) *rig {
	t.Helper()
	return rigOf(t, newFake(), opts)
}

func rigOf(t testing.TB, f *fake, opts guard.Options) *rig {
	t.Helper()
	b := &tap{fake: f}
	r := &rig{TB: t, fake: b.fake, dev: guard.Wrap(b, opts)}
	r.pd = have(r.dev.AllocPD())(t)
	r.send = have(r.dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
	r.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: rigDepth}))(t)
	r.mr = have(r.pd.AllocMR(64, 0))(t)
	r.ah = have(r.pd.CreateAH(hca.AHSpec{Port: 1}))(t)
	r.qp = have(r.pd.CreateQP(rigSpec, r.send, r.recv))(t)
	r.inner.send, r.inner.recv, r.inner.qp = b.cqs[0], b.cqs[1], b.qps[0]
	return r
}

// bubble runs a test in a synctest bubble, with a rig that it closes afterwards.
func bubble(t *testing.T, opts guard.Options, f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, opts)
		f(r)
		r.close()
	})
}

type closer interface{ Close() error }

func (r *rig) all() []closer { return []closer{r.ah, r.qp, r.send, r.recv, r.mr, r.pd, r.dev} }

// close closes all objects, children before their parents.
func (r *rig) close() {
	r.Helper()
	for _, c := range r.all() {
		if err := c.Close(); err != nil {
			r.Errorf("close %T: %v", c, err)
		}
	}
}

func (r *rig) postRecv(ids ...uint64) {
	r.Helper()
	var wrs []hca.RecvWR
	for _, id := range ids {
		wrs = append(wrs, hca.RecvWR{ID: id})
	}
	if n, err := r.qp.PostRecv(wrs); n != len(ids) || err != nil {
		r.Fatalf("posted %d: %v", n, err)
	}
}

// done returns successful completions.
func done(op hca.WCOpcode, ids ...uint64) (wcs []hca.WC) {
	for _, id := range ids {
		wcs = append(wcs, hca.WC{ID: id, Status: hca.WCSuccess, Opcode: op, QPN: fakeQPN})
	}
	return wcs
}

// wantWCs polls once and compares the completions.
func (r *rig) wantWCs(cq hca.CQ, want []hca.WC) {
	r.Helper()
	wc := make([]hca.WC, 4*rigDepth)
	n, err := cq.Poll(wc)
	if err != nil {
		r.Errorf("poll: %v", err)
	}
	if !slices.Equal(wc[:n], want) {
		r.Errorf("completions %+v, want %+v", wc[:n], want)
	}
}

func (r *rig) wantErr(err, want error, what string) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: %v, want %v", what, err, want)
	}
}

// wantCounts checks counters.
func (r *rig) wantCounts(want map[string]uint64) {
	r.Helper()
	for _, c := range r.dev.Counters() {
		if n, ok := want[c.Name]; ok && n != c.Value {
			r.Errorf("%s: %d, want %d", c.Name, c.Value, n)
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		r.Errorf("counters %v do not exist", want)
	}
}
