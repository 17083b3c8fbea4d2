package endpoint

import (
	"errors"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// openRecorded opens an endpoint of generation 1 on a software HCA that records which
// objects are closed, with faults on command.
func openRecorded(t *testing.T) (*Endpoint, *recorder, *faults.Device) {
	t.Helper()
	fabric := memfabric.New(1)
	dev, err := soft.Open(soft.Config{Name: "soft", Transport: fabric.Attach("eth0", 1500, addr1)})
	if err != nil {
		t.Fatal(err)
	}
	rec := &recorder{Device: dev}
	faulty := faults.Wrap(rec, faults.Options{})
	s := open(faulty)
	e, err := Open(s, testSpec(t, s), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(e.Close(), s.Close(), fabric.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return e, rec, faulty
}

// Each rung creates again the object that it is named after, and leaves the others as they
// were.
func TestR06RungsMakeAnewWhatTheySay(t *testing.T) {
	e, rec, _ := openRecorded(t)
	for _, c := range []struct {
		rung   qprecovery.Rung
		closed []string
	}{
		{qprecovery.RungResetQP, nil},
		{qprecovery.RungRecreateQP, []string{"group", "QP"}},
		{qprecovery.RungRebuildCQ, []string{"group", "QP", "CQ", "CQ"}},
	} {
		rec.closed = nil
		qp, cqs, ahs := e.QP, []hca.CQ{e.Queues[0].SendCQ, e.Queues[0].RecvCQ}, e.AHs
		if err := e.Stop(c.rung); err != nil {
			t.Fatalf("%v: %v", c.rung, err)
		}
		if err := e.Start(c.rung, 2); err != nil {
			t.Fatalf("%v: %v", c.rung, err)
		}
		if !slices.Equal(rec.closed, c.closed) {
			t.Errorf("%v closed %v, want %v", c.rung, rec.closed, c.closed)
		}
		if same := e.QP == qp; same != (c.rung == qprecovery.RungResetQP) {
			t.Errorf("%v: same queue pair: %v", c.rung, same)
		}
		if same := e.Queues[0].SendCQ == cqs[0] && e.Queues[0].RecvCQ == cqs[1]; same != (c.rung < qprecovery.RungRebuildCQ) {
			t.Errorf("%v: same CQs: %v", c.rung, same)
		}
		if e.AHs != ahs || e.Self().QPN != e.QP.Num() {
			t.Errorf("%v: other handles, or own address %v of %v", c.rung, e.Self().QPN, e.QP.Num())
		}
		if state, err := e.State(); err != nil || state != hca.QPRTS {
			t.Errorf("%v: %v, %v", c.rung, state, err)
		}
	}
}

func TestR02ResumeFromSQE(t *testing.T) {
	e, _, faulty := openRecorded(t)
	if err := faulty.Inject(faults.Fault{Kind: faults.SendErrorSQE}); err != nil {
		t.Fatal(err)
	}
	sge := e.Queues[0].SendMR.SGE(0, 100)
	if _, err := e.QP.PostSend([]hca.SendWR{{ID: 1, SGList: []hca.SGE{sge}, UD: e.Self(), Flags: hca.SendSignaled}}); err != nil {
		t.Fatal(err)
	}
	var wc [1]hca.WC
	if n, err := e.Queues[0].SendCQ.Poll(wc[:]); err != nil || n != 1 || wc[0].Status == hca.WCSuccess {
		t.Fatalf("%d completions, %+v, %v", n, wc, err)
	}
	if state, err := e.State(); err != nil || state != hca.QPSQE {
		t.Fatalf("%v, %v", state, err)
	}
	if err := e.Resume(); err != nil {
		t.Fatal(err)
	}
	if state, err := e.State(); err != nil || state != hca.QPRTS {
		t.Errorf("%v, %v", state, err)
	}
}

// A rung that failed half way leaves objects that the next one can use.
func TestR06FailedRungIsFollowedByTheNext(t *testing.T) {
	e, _, faulty := openRecorded(t)
	for _, c := range []struct {
		fault faults.Kind
		rung  qprecovery.Rung
	}{
		{faults.ResetFails, qprecovery.RungResetQP},
		{faults.CreateQPFails, qprecovery.RungRecreateQP},
		{faults.CreateQPFails, qprecovery.RungRebuildCQ},
	} {
		if err := faulty.Inject(faults.Fault{Kind: c.fault}); err != nil {
			t.Fatal(err)
		}
		err := e.Stop(c.rung)
		if err == nil {
			err = e.Start(c.rung, 2)
		}
		if err == nil {
			t.Fatalf("%v: no error", c.rung)
		}
	}
	if err := errors.Join(e.Resume(), e.Fail()); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("without a queue pair: %v", err)
	}
	if err := errors.Join(e.Stop(qprecovery.RungRebuildCQ), e.Start(qprecovery.RungRebuildCQ, 3)); err != nil {
		t.Fatal(err)
	}
	if state, err := e.State(); err != nil || state != hca.QPRTS {
		t.Errorf("%v, %v", state, err)
	}
}

func TestR12ReleaseInOrderOfDependence(t *testing.T) {
	e, rec, _ := openRecorded(t)
	rec.closed = nil
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.session.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"AH", "AH", "group", "QP", "CQ", "CQ", "MR", "MR", "PD", "device"}
	if !slices.Equal(rec.closed, want) {
		t.Errorf("closed %v, want %v", rec.closed, want)
	}
}

// recorder is a device that records which objects are closed, in order.
type recorder struct {
	hca.Device
	closed []string
	wire   uint64 // by which WireBlocked grows with each call
	full   uint64
	busy   bool // the next QP that is closed is busy
}

func (r *recorder) WireBlocked() uint64 {
	r.full += r.wire
	return r.full
}

func (r *recorder) note(what string, err error) error {
	if err == nil {
		r.closed = append(r.closed, what)
	}
	return err
}

func (r *recorder) Close() error { return r.note("device", r.Device.Close()) }

func (r *recorder) AllocPD() (hca.PD, error) {
	pd, err := r.Device.AllocPD()
	return &recordedPD{pd, r}, err
}

func (r *recorder) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	cq, err := r.Device.CreateCQ(spec)
	return &recordedCQ{cq, r}, err
}

type recordedPD struct {
	hca.PD
	r *recorder
}

func (p *recordedPD) Close() error { return p.r.note("PD", p.PD.Close()) }

func (p *recordedPD) AllocMR(size int, access hca.Access) (hca.MR, error) {
	mr, err := p.PD.AllocMR(size, access)
	return &recordedMR{mr, p.r}, err
}

func (p *recordedPD) CreateAH(spec hca.AHSpec) (hca.AH, error) {
	ah, err := p.PD.CreateAH(spec)
	return &recordedAH{ah, p.r}, err
}

func (p *recordedPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	qp, err := p.PD.CreateQP(spec, send.(*recordedCQ).CQ, recv.(*recordedCQ).CQ)
	return &recordedQP{qp, p.r}, err
}

type recordedMR struct {
	hca.MR
	r *recorder
}

func (m *recordedMR) Close() error { return m.r.note("MR", m.MR.Close()) }

type recordedAH struct {
	hca.AH
	r *recorder
}

func (a *recordedAH) Close() error { return a.r.note("AH", a.AH.Close()) }

type recordedCQ struct {
	hca.CQ
	r *recorder
}

func (c *recordedCQ) Close() error { return c.r.note("CQ", c.CQ.Close()) }

type recordedQP struct {
	hca.QP
	r *recorder
}

func (q *recordedQP) Close() error {
	if q.r.busy {
		q.r.busy = false
		return hca.ErrBusy
	}
	return q.r.note("QP", q.QP.Close())
}

func (q *recordedQP) DetachMulticast(g hca.MulticastGroup) error {
	return q.r.note("group", q.QP.DetachMulticast(g))
}

// PostSend gives the device its own handles.
func (q *recordedQP) PostSend(wrs []hca.SendWR) (int, error) {
	wrs = slices.Clone(wrs)
	for i := range wrs {
		wrs[i].UD.AH = wrs[i].UD.AH.(*recordedAH).AH
	}
	return q.QP.PostSend(wrs)
}
