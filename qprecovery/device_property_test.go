package qprecovery

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// deviceWatcher drives a device's ladder and checks what must hold always.
type deviceWatcher struct {
	d      *DeviceLadder
	now    time.Time
	op     uint64
	until  time.Time // the operation may not be overtaken before
	closed bool      // the device was let go, or never opened
	waits  time.Time // the wait rung was entered
	gaveUp bool
}

func newDeviceWatcher(cfg DeviceConfig) *deviceWatcher {
	cfg.Identity = same
	return &deviceWatcher{d: NewDeviceLadder(epoch, cfg), now: epoch}
}

func (w *deviceWatcher) do(ev DeviceEvent) error {
	before := w.d.State()
	d, ok := ev.(Done)
	answered := ok && before.operating() && d.Op == w.op
	if answered {
		opened := before == DeviceOpening || before == DeviceRetrying
		w.closed = opened != (d.Class == ClassSuccess || !opened && (d.Class == ClassTransient || d.Class == ClassDeviceError))
		w.op = 0
	}
	for _, a := range w.d.Step(w.now, ev, nil) {
		if err := w.see(a); err != nil {
			return fmt.Errorf("%v on %#v: %w", before, ev, err)
		}
	}
	after := w.d.State()
	if answered && d.Class != ClassSuccess && !waits(before, after) {
		return fmt.Errorf("%v fails and leads to %v", before, after)
	}
	return w.settled(before)
}

// waits reports whether a failure has led to the wait, or to rest.
func waits(from, to DeviceState) bool {
	return to == DeviceSuspended || to.Rung() >= RungWait && to.Rung() >= from.Rung()
}

func (w *deviceWatcher) see(a DeviceAction) error {
	switch a := a.(type) {
	case Drop:
		return w.begin(a.Op, DefaultGrace+dropMargin)
	case Open:
		if !w.closed {
			return fmt.Errorf("opened before it was let go")
		}
		return w.begin(a.Op, openLimit)
	case GiveUp:
		return w.giveUp()
	case ReportForeign:
		if same.Same(a.Identity) {
			return fmt.Errorf("the same device is foreign")
		}
	}
	return nil
}

func (w *deviceWatcher) begin(op uint64, limit time.Duration) error {
	if w.op != 0 && w.now.Before(w.until) {
		return fmt.Errorf("operation %d overtakes %d", op, w.op)
	}
	w.op, w.until = op, w.now.Add(limit)
	return nil
}

// giveUp: once, and not before its time.
func (w *deviceWatcher) giveUp() error {
	if waited := w.now.Sub(w.waits); w.gaveUp || waited < DefaultGiveUpAfter {
		return fmt.Errorf("gives up after %v, again: %v", waited, w.gaveUp)
	}
	w.gaveUp = true
	return nil
}

func (w *deviceWatcher) settled(before DeviceState) error {
	s := w.d.State()
	if s.Rung() == RungWait && before.Rung() != RungWait {
		w.waits, w.gaveUp = w.now, false
	}
	if before == DeviceGivenUp && s != before && s.Rung() != RungWait {
		return fmt.Errorf("%v leads to %v", before, s)
	}
	if at, ok := w.d.NextDeadline(); ok && !at.After(w.now) {
		return fmt.Errorf("%v: a deadline is left over", s)
	}
	if s == DeviceSuspended && (!w.d.view.suspended || w.d.wait.until != time.Time{}) {
		return fmt.Errorf("suspended, but wanted or waited for")
	}
	if ill := s != DeviceHealthy; w.d.history.open != ill {
		return fmt.Errorf("%v: record open %v", s, !ill)
	}
	return nil
}

func (w *deviceWatcher) advance(d time.Duration) error {
	for end := w.now.Add(d); ; {
		at, ok := w.d.NextDeadline()
		if !ok || at.After(end) {
			w.now = end
			return nil
		}
		w.now = at
		if err := w.do(Tick{}); err != nil {
			return err
		}
	}
}

func (w *deviceWatcher) anyEvent(t *rapid.T) DeviceEvent {
	op := w.d.op.id - uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "age"))
	class := Class(rapid.IntRange(0, int(NumClass)).Draw(t, "class"))
	id := rapid.SampledFrom([]Identity{same, same, other}).Draw(t, "device")
	id.Index = uint32(rapid.IntRange(0, 3).Draw(t, "index"))
	return rapid.SampledFrom([]DeviceEvent{
		Done{Op: op},
		Done{Op: op},
		Done{Op: op, Class: class},
		Fault{Gen: genOf(t, w.d.gen), Class: class},
		Fault{Gen: w.d.gen, Class: ClassDeviceError},
		Checked{Gen: genOf(t, w.d.gen), Class: class},
		Asked{Reason: ReasonVerbFailed},
		Order{rapid.SampledFrom(topRungs).Draw(t, "order")},
		Removed{id.Index},
		Arrived{id},
		Recover{},
		Suspend{},
		Resume{},
		Tick{},
	}).Draw(t, "event")
}

// heal answers whatever is asked with success until the device is healthy.
func (w *deviceWatcher) heal() error {
	for range 20 {
		var ev DeviceEvent = Arrived{w.d.Identity()}
		switch s := w.d.State(); {
		case s == DeviceHealthy:
			return nil
		case s.operating():
			ev = Done{Op: w.d.op.id}
		case s == DevicePausing, s == DeviceGivenUp:
			ev = Recover{}
		case s == DeviceSuspended:
			ev = Resume{}
		}
		if err := w.do(ev); err != nil {
			return err
		}
	}
	return fmt.Errorf("not healthy: %v", w.d.State())
}

// TestR21Invariants: days of random events on a device. Never two operations at
// once, never opened before it was let go, a failure always leads to the wait or
// to the rest of a suspended device, the wait ends once and not before its time,
// and the way back is always there.
func TestR21Invariants(t *testing.T) { rapid.Check(t, deviceInvariants) }

// FuzzR21Invariants is the same, guided by coverage.
func FuzzR21Invariants(f *testing.F) {
	f.Add(make([]byte, 1<<16)) // as much as any world draws
	f.Fuzz(rapid.MakeFuzz(deviceInvariants))
}

func deviceInvariants(t *rapid.T) {
	w := newDeviceWatcher(DeviceConfig{AllowForeign: rapid.Bool().Draw(t, "foreign")})
	for range rapid.IntRange(1, 150).Draw(t, "events") {
		check(t, w.do(w.anyEvent(t)))
		check(t, w.advance(rapid.SampledFrom(delays).Draw(t, "delay")))
	}
	check(t, w.heal())
}
