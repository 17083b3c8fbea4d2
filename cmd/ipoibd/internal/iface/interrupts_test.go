package iface

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/freeze"
)

// deafEQ is an HCA whose completions arrive in the CQs, but whose events (interrupts, EQ) do not, while
// on is true: only Wake and the time end a Wait.
type deafEQ struct {
	hca.Device
	on *atomic.Bool
}

type deafEQPD struct{ hca.PD }

type deafEQCQ struct {
	hca.CQ
	on   *atomic.Bool
	wake chan struct{}
}

func (d *deafEQ) AllocPD() (hca.PD, error) {
	pd, err := d.Device.AllocPD()
	return &deafEQPD{pd}, err
}

func (d *deafEQ) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	cq, err := d.Device.CreateCQ(spec)
	return &deafEQCQ{cq, d.on, make(chan struct{}, 1)}, err
}

func (c *deafEQCQ) Wake() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
	c.CQ.Wake()
}

func (c *deafEQCQ) Wait(until time.Time) error {
	if !c.on.Load() {
		return c.CQ.Wait(until)
	}
	var late <-chan time.Time
	if !until.IsZero() {
		late = time.After(time.Until(until))
	}
	select {
	case <-c.wake:
	case <-late:
	}
	return nil
}

func (p *deafEQPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	return p.PD.CreateQP(spec, send.(*deafEQCQ).CQ, recv.(*deafEQCQ).CQ)
}

// The interrupts of a device are lost. The detector's polls find what has completed, so nothing looks
// frozen, but the interface is slow. That is noticed within seconds, the CQs are rebuilt, and the status
// says it until the interrupts come again. The device is never reset for it (R08).
func TestR08LostInterruptsAreNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		var on atomic.Bool
		a := bareHost(t, fabric, 1)
		cfg := a.device()
		open := cfg.Open
		cfg.Open = func(ctx context.Context) (hca.Device, error) {
			dev, err := open(ctx)
			return &deafEQ{dev, &on}, err
		}
		a.dev = device.New(cfg)
		a.iface = newIface(a.t, a.tap, a.dev, testConfig())
		a.start()
		b := newHost(t, fabric, 2)
		a.up()
		b.up()
		a.resolve(b.ip)
		reach(t, a, b)
		time.Sleep(time.Minute)
		noticed := func() bool {
			return slices.ContainsFunc(a.status().Notices, func(n report.Notice) bool { return n.Kind == "events_lost" })
		}
		if n := count(a.status(), "freeze_found_by_poll"); n != 0 || noticed() {
			t.Fatalf("%d found by polls in health", n)
		}
		on.Store(true)
		a.onRun(func(f *Iface) { f.lanes.all[0].in.wake(); f.lanes.all[0].out.wake() }) // out of the Wait of before
		if took := until(noticed, 50*time.Millisecond, time.Minute); took > freeze.Rest+3*time.Second {
			t.Errorf("noticed after %v", took)
		}
		time.Sleep(10 * time.Minute)
		r := a.status().Recovery
		if n := r.Reasons[qprecovery.ReasonEventsLost.String()]; n < 9 || n > 11 || r.Rungs["rebuild_cq"] != n || r.State != qprecovery.Healthy.String() || a.dev.Opens() != 1 {
			t.Errorf("in 10 minutes: %v by %v, %s, the device was opened %d times", r.Rungs, r.Reasons, r.State, a.dev.Opens())
		}
		if n := count(a.status(), "freeze_found_by_poll"); n < 1000 {
			t.Errorf("%d found by polls", n)
		}
		on.Store(false)
		a.onRun(func(f *Iface) { f.lanes.all[0].in.wake(); f.lanes.all[0].out.wake() })
		time.Sleep(5 * time.Second)
		if noticed() {
			t.Error("the notice stays")
		}
		reach(t, a, b)
	})
}
