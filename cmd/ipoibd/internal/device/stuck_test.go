package device

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
)

// An HCA whose instances all hang uses up its own bound alone: another HCA of the
// process is reset as before (R28).
func TestR19StuckInstancesLeaveOtherDevicesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck, other := newBench(t, nil), newBench(t, nil)
		stuck.slot.forever = make(chan struct{})
		for _, b := range []*bench{stuck, other} {
			b.run()
			defer b.stop()
			b.healthy(time.Minute)
		}
		defer close(stuck.slot.forever)
		for range guard.MaxZombies {
			stuck.hangClosing()
		}
		if err := stuck.View().Err; !errors.Is(err, hca.ErrBusy) || !strings.Contains(err.Error(), stuck.cfg.Name) {
			t.Errorf("the view of the device that hangs: %v", err)
		}
		if err := other.Reset(t.Context()); err != nil {
			t.Fatal(err)
		}
		other.healthy(time.Minute)
	})
}

// hangClosing has the device reset, and its instance hang in the driver.
func (b *bench) hangClosing() {
	b.t.Helper()
	err := b.slot.faults.Inject(faults.Fault{Kind: faults.VerbHangsForever, Verb: "close_device"})
	if err := errors.Join(err, b.Reset(context.Background())); err != nil {
		b.t.Fatal(err)
	}
	time.Sleep(time.Minute)
}

// An HCA in which a verb of each instance hangs, whatever is reset, is opened only so
// often as the process can bear; it serves again once a verb has returned.
func TestR19StuckInstancesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.slot.forever = make(chan struct{})
		b.run()
		defer b.stop()
		b.healthy(time.Minute)
		start := runtime.NumGoroutine()
		const times = 200
		for range times {
			if b.View().Session == nil {
				break
			}
			b.hangClosing()
		}
		t.Logf("%d instances, %d goroutines more", b.Opens(), runtime.NumGoroutine()-start)
		if b.Opens() != guard.MaxZombies || runtime.NumGoroutine()-start > 5*guard.MaxZombies {
			t.Errorf("want %d instances", guard.MaxZombies)
		}
		if err := b.View().Err; !errors.Is(err, hca.ErrBusy) {
			t.Errorf("the view: %v", err)
		}
		opens := b.slot.did().opens
		time.Sleep(5 * time.Minute)
		if n := b.slot.did().opens; n != opens {
			t.Errorf("opened %d times more", n-opens)
		}
		close(b.slot.forever)
		b.healthy(time.Minute)
	})
}
