package iface

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// mrTimeouts is an HCA whose registrations of memory time out.
type mrTimeouts struct{ hca.Device }

type mrTimeoutsPD struct{ hca.PD }

func (d *mrTimeouts) AllocPD() (hca.PD, error) {
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &mrTimeoutsPD{pd}, nil
}

func (*mrTimeoutsPD) AllocMR(int, hca.Access) (hca.MR, error) {
	return nil, &hca.VerbError{Verb: "reg_mr", Err: hca.ErrTimeout}
}

// lateLadder delays Run once, when the interface has requested a reset of the device and is about
// to compare the device's view with what the ladder knows.
type lateLadder struct {
	*qprecovery.Ladder
	f       *Iface
	delayed bool
}

func (l *lateLadder) Device() qprecovery.DeviceView {
	if l.State() == qprecovery.Asking && l.f.fabric.held() == nil && !l.delayed {
		l.delayed = true
		time.Sleep(100 * time.Millisecond)
	}
	return l.Ladder.Device()
}

// The device is reset, and on its next instance a verb fails, so the interface requests another
// reset. That reset is over before the interface looks at the device again. The interface holds
// nothing at that moment, and sees only the session after it; it learns nevertheless that the
// session of its request has ended, and uses the new one (R11, R13).
func TestR13ResetThatIsOverBeforeTheInterfaceLooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a := bareHost(t, fabric, 1)
		cfg := a.device()
		open, opens := cfg.Open, 0
		cfg.Open = func(ctx context.Context) (hca.Device, error) {
			dev, err := open(ctx)
			if opens++; err != nil || opens != 2 {
				return dev, err
			}
			return &mrTimeouts{dev}, nil
		}
		a.dev = device.New(cfg)
		a.iface = newIface(a.t, a.tap, a.dev, testConfig())
		late := &lateLadder{Ladder: &qprecovery.Ladder{}, f: a.iface}
		a.iface.rec.ladder = late
		a.start()
		b := newHost(t, fabric, 2)
		a.up()
		b.up()
		a.resolve(b.ip)
		reach(t, a, b)
		a.inject(faults.Fault{Kind: faults.DeviceFatal})
		time.Sleep(time.Minute)
		synctest.Wait()
		if opens != 3 || !late.delayed {
			t.Fatalf("the device was opened %d times, want 3; delayed: %t", opens, late.delayed)
		}
		if s := a.status(); s.State != report.InterfaceUp {
			t.Errorf("a minute later: %s, %q; the ladder is %s", s.State, s.Detail, s.Recovery.State)
		}
		reach(t, a, b)
	})
}
