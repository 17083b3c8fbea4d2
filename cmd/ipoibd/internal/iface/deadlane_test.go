package iface

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/link/linktest"
	"ipoibd/qprecovery"
)

// halfDead is an HCA that loses all completions of one lane, of every queue pair, while on is true.
type halfDead struct {
	hca.Device
	lane int
	on   atomic.Bool
}

type halfDeadPD struct {
	hca.PD
	dev *halfDead
}

type halfDeadCQ struct {
	hca.CQ
	dev *halfDead
	hit atomic.Bool // it belongs to the lane
}

func (d *halfDead) AllocPD() (hca.PD, error) {
	pd, err := d.Device.AllocPD()
	return &halfDeadPD{pd, d}, err
}

func (d *halfDead) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	cq, err := d.Device.CreateCQ(spec)
	return &halfDeadCQ{CQ: cq, dev: d}, err
}

func (p *halfDeadPD) CreateQP(spec hca.QPSpec, send, recv hca.CQ) (hca.QP, error) {
	qp, _, err := p.CreateQueues(spec, []hca.CQPair{{Send: send, Recv: recv}})
	return qp, err
}

func (p *halfDeadPD) CreateQueues(spec hca.QPSpec, cqs []hca.CQPair) (hca.QP, []hca.Queue, error) {
	inner := make([]hca.CQPair, len(cqs))
	for i, c := range cqs {
		send, recv := c.Send.(*halfDeadCQ), c.Recv.(*halfDeadCQ)
		send.hit.Store(i == p.dev.lane)
		recv.hit.Store(i == p.dev.lane)
		inner[i] = hca.CQPair{Send: send.CQ, Recv: recv.CQ}
	}
	return hca.CreateQueues(p.PD, spec, inner)
}

func (c *halfDeadCQ) Poll(wc []hca.WC) (int, error) {
	n, err := c.CQ.Poll(wc)
	if c.dev.on.Load() && c.hit.Load() {
		n = 0
	}
	return n, err
}

// A freeze is proven whichever lane has frozen, although the other one works (R08).
func TestR08DeadLaneIsProven(t *testing.T) {
	for lane := range 2 {
		t.Run("lane "+string('0'+rune(lane)), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				fabric := newFabric(t, 1)
				dead := &halfDead{lane: lane}
				a, b := bareHost(t, fabric, 1), newLanedHost(t, fabric, 2)
				second := linktest.NewFake("ib0")
				a.lanes, a.tap.more = 2, []link.Queue{second}
				cfg := a.device()
				open := cfg.Open
				cfg.Open = func(ctx context.Context) (hca.Device, error) {
					dev, err := open(ctx)
					if dead.Device != nil || err != nil {
						return dev, err
					}
					dead.Device = dev
					return dead, nil
				}
				a.dev = device.New(cfg)
				a.iface = newIface(t, a.tap, a.dev, testConfig())
				a.start()
				a.up()
				b.up()
				time.Sleep(time.Second)
				dead.on.Store(true)
				took := until(func() bool { return a.dev.Opens() > 1 }, 100*time.Millisecond, time.Hour)
				if r := a.status().Recovery; a.dev.Opens() == 1 || r.Reasons[qprecovery.ReasonFreezePersists.String()] != 1 {
					t.Errorf("opened %d times within %v; rungs %v by %v", a.dev.Opens(), took, r.Rungs, r.Reasons)
				}
				t.Logf("reset after %v", took)
			})
		})
	}
}

// A lane that hangs in the device drops the host's frames until another one replaces it. All that it has read are
// counted.
func TestRenewedLaneCountsWhatWasDiscarded(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		mac, _ := a.neighbour(b.ip)
		read := func() uint64 { return count(a.status(), "tx_read") - a.tap.Counters().Read }
		before := read()
		a.onRun(func(f *Iface) {
			if err := f.lanes.halt(); err != nil {
				t.Fatal(err)
			}
			for range 200 {
				for range 34 {
					a.sendIP(mac, b.ip, 100, 1)
				}
				f.lanes.discard(true)
				f.lanes.all[0].lost = hca.ErrStuck
				if err := f.lanes.renew(); err != nil {
					t.Fatal(err)
				}
			}
			f.lanes.discard(true)
		})
		synctest.Wait()
		if after := read(); after != before {
			t.Errorf("%d frames were read and not counted", before-after)
		}
		a.deviceReset()
	})
}
