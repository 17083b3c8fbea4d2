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

// An HCA whose instances all hang uses up only its own limit. Another HCA of the process
// can still be reset (R28).
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

// A device answers while its HCA hangs, does not while its own goroutine does, and answers again
// once it has ended.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.slot.forever = make(chan struct{})
		b.run()
		b.healthy(time.Minute)
		b.hangClosing()
		answers := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return b.Answers(ctx)
		}
		if err := answers(); err != nil {
			t.Errorf("while the HCA hangs: %v", err)
		}
		hang := make(chan struct{})
		b.calls <- func(*owner) { <-hang }
		if err := answers(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while the device hangs: %v", err)
		}
		close(hang)
		close(b.slot.forever)
		b.stop()
		if err := answers(); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}

// hangClosing resets the device and makes its instance hang in the driver.
func (b *bench) hangClosing() {
	b.t.Helper()
	b.slot.inject(b.t, faults.Fault{Kind: faults.VerbHangsForever, Verb: "close_device"})
	if err := b.Reset(context.Background()); err != nil {
		b.t.Fatal(err)
	}
	time.Sleep(time.Minute)
}

// An HCA whose instances all hang in a verb is opened a bounded number of times. It
// works again once the verbs have returned.
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
		more := runtime.NumGoroutine() - start
		t.Logf("%d instances, %d more goroutines", b.Opens(), more)
		if b.Opens() != guard.MaxZombies || more > 5*guard.MaxZombies {
			t.Errorf("%d instances, %d more goroutines; want %d, and %d at most", b.Opens(), more, guard.MaxZombies, 5*guard.MaxZombies)
		}
		if err := b.View().Err; !errors.Is(err, hca.ErrBusy) {
			t.Errorf("the view has %v, want hca.ErrBusy", err)
		}
		opens := b.slot.did().opens
		time.Sleep(5 * time.Minute)
		if n := b.slot.did().opens; n != opens {
			t.Errorf("opened %d more times", n-opens)
		}
		close(b.slot.forever)
		b.healthy(time.Minute)
	})
}
