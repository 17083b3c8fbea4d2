package faults_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
)

const (
	rigQKey  = hca.QKey(0x0b1b)
	rigDepth = 16
	rigSlot  = 4096
)

var rigAddr = netip.MustParseAddr("10.0.0.1")

// rig is a faulty device with a QP in RTS that sends to itself.
type rig struct {
	testing.TB
	dev        *faults.Device
	pd         hca.PD
	send, recv hca.CQ
	qp         hca.QP
	mr         hca.MR
	ah         hca.AH
	unplugged  int
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

// openSoft opens a software HCA with two lanes on a fabric.
func openSoft(t testing.TB, f *memfabric.Fabric, name string, addr netip.Addr) (*soft.Device, *memfabric.Port) {
	t.Helper()
	ports := f.AttachLanes(2, name, 1500, addr)
	cfg := soft.Config{
		Name: name, Transport: ports[0], PKeys: []hca.PKey{hca.PKeyDefault, 0x8001}, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	cfg.More = append(cfg.More, ports[1])
	return have(soft.Open(cfg))(t), ports[0]
}

func newRig(t testing.TB) *rig {
	t.Helper()
	dev, _ := openSoft(t, memfabric.New(1), "a", rigAddr)
	return rigOn(t, dev)
}

// rigOn returns a rig on a device.
func rigOn(t testing.TB, dev hca.Device) *rig {
	t.Helper()
	r := &rig{TB: t}
	r.dev = faults.Wrap(dev, faults.Options{OnUnplug: func() { r.unplugged++ }})
	r.pd = have(r.dev.AllocPD())(t)
	r.send = have(r.dev.CreateCQ(hca.CQSpec{Entries: 4 * rigDepth}))(t)
	r.recv = have(r.dev.CreateCQ(hca.CQSpec{Entries: 4 * rigDepth}))(t)
	r.mr = have(r.pd.AllocMR(2*rigDepth*rigSlot, hca.AccessLocalWrite))(t)
	spec := hca.QPSpec{SendWRs: rigDepth, RecvWRs: rigDepth, SendSGEs: 2, RecvSGEs: 2, SignalAll: true}
	r.qp = have(r.pd.CreateQP(spec, r.send, r.recv))(t)
	r.ah = have(r.pd.CreateAH(hca.AHSpec{Port: 1, Global: true, DGID: hca.GIDFromAddr(rigAddr)}))(t)
	r.up()
	return r
}

// bubble runs a test in a synctest bubble, with a rig that it closes afterwards.
func bubble(t *testing.T, f func(*rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		f(r)
		r.close()
	})
}

// close closes all objects, children before their parents.
func (r *rig) close() {
	r.Helper()
	for _, c := range []interface{ Close() error }{r.ah, r.qp, r.send, r.recv, r.mr, r.pd, r.dev} {
		if err := c.Close(); err != nil {
			r.Error(err)
		}
	}
}

// counted returns the value of a counter, or 0 if there is none of this name.
func (r *rig) counted(name string) uint64 {
	for _, c := range r.dev.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

func (r *rig) modify(from, to hca.QPState) error {
	a := hca.QPAttr{State: to, Port: 1, QKey: rigQKey}
	return r.qp.Modify(a, hca.AttrState|hca.UDTransition(from, to).Required)
}

func (r *rig) up() {
	r.Helper()
	for s := hca.QPReset; s < hca.QPRTS; s++ {
		if err := r.modify(s, s+1); err != nil {
			r.Fatal(err)
		}
	}
}

// reset resets the QP and brings it up again.
func (r *rig) reset() {
	r.Helper()
	if err := r.modify(r.state(), hca.QPReset); err != nil {
		r.Fatal(err)
	}
	r.up()
}

func (r *rig) state() hca.QPState {
	r.Helper()
	return have(r.qp.Query())(r).State
}

func (r *rig) inject(f faults.Fault) {
	r.Helper()
	if err := r.dev.Inject(f); err != nil {
		r.Fatal(err)
	}
}

// postRecv posts receives with IDs 100, 101, ...
func (r *rig) postRecv(n int) {
	r.Helper()
	for i := range n {
		wr := hca.RecvWR{ID: uint64(100 + i), SGList: []hca.SGE{r.mr.SGE(i*rigSlot, rigSlot)}}
		if _, err := r.qp.PostRecv([]hca.RecvWR{wr}); err != nil {
			r.Fatal(err)
		}
	}
}

// sends returns n sends with IDs 0, 1, ...
func (r *rig) sends(n int) (wrs []hca.SendWR) {
	for i := range n {
		wrs = append(wrs, hca.SendWR{
			ID: uint64(i), SGList: []hca.SGE{r.mr.SGE((rigDepth+i)*rigSlot, 8)},
			UD: hca.UDDest{AH: r.ah, QPN: r.qp.Num(), QKey: rigQKey},
		})
	}
	return wrs
}

func (r *rig) postSend(n int) {
	r.Helper()
	if got, err := r.qp.PostSend(r.sends(n)); got != n || err != nil {
		r.Fatalf("posted %d of %d: %v", got, n, err)
	}
}

// outcome is the ID and status of a completion.
type outcome struct {
	id     uint64
	status hca.WCStatus
}

func (r *rig) poll(cq hca.CQ) (out []outcome) {
	r.Helper()
	wc := make([]hca.WC, 4*rigDepth)
	n, err := cq.Poll(wc)
	if err != nil {
		r.Fatal(err)
	}
	for _, w := range wc[:n] {
		out = append(out, outcome{w.ID, w.Status})
	}
	return out
}

// wantEvent waits for the next event.
func (r *rig) wantEvent(want hca.EventType, on hca.ObjectID) {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if ev, err := r.dev.NextEvent(ctx); err != nil || ev.Type != want || ev.On != on {
		r.Errorf("event %+v, %v, want %v on %+v", ev, err, want, on)
	}
}

func (r *rig) wantNoEvent() {
	r.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if ev, err := r.dev.NextEvent(ctx); !errors.Is(err, context.DeadlineExceeded) {
		r.Errorf("event %+v, %v, want none", ev, err)
	}
}

func (r *rig) wantErr(err, want error, what string) {
	r.Helper()
	if !errors.Is(err, want) {
		r.Errorf("%s: %v, want %v", what, err, want)
	}
}
