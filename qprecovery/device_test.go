package qprecovery

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/qprecovery/reset"
)

// TestR21DeviceTotality: each pair of state and cause has at most one row; each state has
// rows for all causes that may occur in it; a verdict always leads to another state; and
// only health or a suspension leads to a lower rung.
func TestR21DeviceTotality(t *testing.T) {
	seen := map[[2]int]bool{}
	for _, r := range deviceRows {
		key := [2]int{int(r.from), int(r.on)}
		if seen[key] {
			t.Errorf("%v on %d has two rows", r.from, r.on)
		}
		seen[key] = true
		if closes := slices.Contains(r.do, doClose); closes != (r.to == DeviceDropping) {
			t.Errorf("%v on %d: closes the session %v, want it exactly when the next state is dropping", r.from, r.on, closes)
		}
		if r.to == DeviceHealthy && r.on != deviceCauseOpened {
			t.Errorf("%v on %d leads to health, want that only after an opening", r.from, r.on)
		}
		if slices.Contains(r.do, doRequest) && r.on != deviceCauseFault && r.on != deviceCauseOrdered && r.on != deviceCauseHeld {
			t.Errorf("%v on %d requests a reset, want that only after a fault, by order, or if the device is held", r.from, r.on)
		}
	}
	for s := range numDeviceState {
		for on := range numDeviceCause {
			if handles := deviceTransitions[s][on] != nil; handles != deviceMustHandle(s, on) {
				t.Errorf("%v on %d: has a row %v, want %v", s, on, handles, !handles)
			}
		}
	}
}

// deviceMustHandle reports whether a state must have a row for a cause. It expresses the
// rules independently of the table.
func deviceMustHandle(s DeviceState, on deviceCause) bool {
	opens := s == DeviceStarting || s == DeviceOpening
	rests := s == DeviceDropping || s == DevicePausing || s == DeviceWaiting || s == DeviceGivenUp || s == DeviceSuspended
	switch on {
	case deviceCauseOpened, deviceCauseFailed:
		return opens
	case deviceCauseFault:
		return s == DeviceHealthy || opens || s == DeviceWaiting // where it may be present but dead
	case deviceCauseOrdered:
		return s != DeviceSuspended
	case deviceCauseRemoved:
		return s == DeviceHealthy || s == DeviceOpening // while starting, no list has shown the device yet
	case deviceCauseSuspend:
		return s == DeviceHealthy || opens
	case deviceCauseGiveUp:
		return s == DeviceWaiting
	case deviceCauseUnwanted:
		return opens || rests && s != DeviceGivenUp && s != DeviceSuspended
	case deviceCauseUnborn:
		return s == DeviceSuspended
	case deviceCauseAbsent, deviceCauseHeld, deviceCauseFree:
		return rests
	case deviceCauseSpent: // a pause has served its purpose, and a command replaces it
		return s == DeviceDropping || s == DeviceWaiting
	default:
		return false
	}
}

// deviceWatcher drives a machine and checks its invariants. Its shell answers in any order,
// with any result, and late.
type deviceWatcher struct {
	d       *DeviceLadder
	now     time.Time
	open    bool   // a session is open
	opening uint64 // the unanswered Open, or 0
	closing bool   // a Close is unanswered
	gen     uint32
	clean   bool // this process holds no objects of the hardware
	refresh uint64
	answers map[uint64]int
	agrees  scripted
	cmd     uint64
	rung    Rung
	waits   time.Time
}

func newDeviceWatcher(cfg DeviceConfig) *deviceWatcher {
	w := &deviceWatcher{now: epoch, clean: true, answers: map[uint64]int{}}
	w.agrees.hear = func(ev reset.Event) {
		if ev.Kind == reset.Released {
			w.d.emit(released{})
		}
	}
	cfg.Join = w.agrees.join
	w.d = NewDeviceLadder(epoch, cfg)
	return w
}

func (w *deviceWatcher) do(ev DeviceEvent) error {
	before, index := w.d.state, w.d.list.id.Index
	switch ev := ev.(type) {
	case Opened:
		if ev.Op == w.opening && w.opening != 0 {
			w.opening = 0
			w.open = ev.Class == ClassSuccess
			broken := ev.Class.NeedsReset() && w.present() && !w.d.cfg.NoReset
			w.clean = w.clean && !w.open && !broken
		}
	case Closed:
		if w.closing && ev.Gen == w.gen {
			w.closing, w.open = false, false
			w.clean = !w.d.session.abandoned || w.d.reset.outcome == reset.OutcomeDone || w.d.reset.outcome == reset.OutcomeHeld || !w.present()
		}
	case said:
		end, _ := ev.Action.(reset.Ended)
		w.clean = w.clean || end.Outcome == reset.OutcomeDone || end.Outcome == reset.OutcomeHeld || end.Outcome == reset.OutcomeAbsent
	case Listed:
		if ev.Op == w.refresh {
			w.refresh = 0
		}
	case Command:
		w.answers[ev.ID] = 0
	}
	for _, a := range w.d.Step(w.now, w.agrees.event(ev), nil) {
		if err := w.checkAction(a); err != nil {
			return fmt.Errorf("%v on %#v: %w", before, ev, err)
		}
	}
	if otherInstance(index, w.d.list.id.Index) && !w.open { // it has nothing to do with the objects of the former one
		w.clean = true
	}
	if err := w.checkState(before); err != nil {
		return fmt.Errorf("%v on %#v: %w", before, ev, err)
	}
	return nil
}

// present reports whether the instance that was opened last is in the list.
func (w *deviceWatcher) present() bool {
	return w.d.list.has(w.d.session.index)
}

func (w *deviceWatcher) checkAction(a DeviceAction) error {
	switch a := a.(type) {
	case Open:
		if w.open || w.opening != 0 || w.d.reset.pending {
			return fmt.Errorf("opens the device while a session is open or a reset is pending")
		}
		w.opening, w.gen = a.Op, a.Gen
	case Close:
		if w.open {
			w.closing = true
		}
	case Abandon:
		if !w.closing && w.opening == 0 || a.Gen != w.gen {
			return fmt.Errorf("abandons session %d, which is neither being closed nor opened", a.Gen)
		}
		if w.opening != 0 {
			w.opening, w.clean = 0, w.clean && (!w.present() || w.d.cfg.NoReset)
		}
	case released:
		if w.open || w.opening != 0 || !w.d.reset.pending {
			return fmt.Errorf("reports that it has released the device, but has not")
		}
	case Refresh:
		if w.refresh != 0 {
			return fmt.Errorf("requests a list while another request is unanswered")
		}
		w.refresh = a.Op
	case Answer:
		if w.answers[a.ID]++; w.answers[a.ID] > 1 {
			return fmt.Errorf("answers command %d twice", a.ID)
		}
	case Entered:
		if a.Rung == w.rung {
			return fmt.Errorf("enters %v, which it has entered already", a.Rung)
		}
		w.rung = a.Rung
	case Ended:
		w.rung = RungNone
	case GiveUp:
		if waited := w.now.Sub(w.waits); waited < DefaultGiveUpAfter {
			return fmt.Errorf("gives up after %v", waited)
		}
	case ReportForeign:
		if w.d.list.id.Same(a.Identity) {
			return fmt.Errorf("reports the same device as foreign")
		}
	}
	return nil
}

func (w *deviceWatcher) checkState(before DeviceState) error {
	s := w.d.state
	if s == DeviceWaiting && (w.waits.IsZero() || before == DeviceGivenUp || before == DeviceSuspended) || s == DeviceHealthy {
		w.waits = w.now
	}
	if s == DeviceSuspended || s == DeviceHealthy || s == DeviceGivenUp {
		if s == DeviceHealthy {
			w.waits = time.Time{}
		}
	}
	at, ok := w.d.NextDeadline()
	waits := w.opening != 0 || w.d.reset.pending || w.open && s == DeviceHealthy
	switch {
	case ok && !at.After(w.now):
		return fmt.Errorf("%v: a deadline is in the past", s)
	case !ok && !waits && s != DeviceSuspended && s != DeviceGivenUp && s != DeviceStarting:
		return fmt.Errorf("%v: waits without a deadline or a pending answer", s)
	case (s == DeviceHealthy) != (w.open && !w.closing):
		return fmt.Errorf("%v with open %v, closing %v", s, w.open, w.closing)
	case s == DeviceHealthy && w.d.gen != w.d.session.gen:
		return fmt.Errorf("%v with generation %d, but session %d", s, w.d.gen, w.d.session.gen)
	case w.rung != w.d.rung || w.rung == RungNone && w.d.history.open:
		return fmt.Errorf("%v: on the rung %v, but reported %v", s, w.d.rung, w.rung)
	case s == DeviceSuspended && (!w.d.suspension.on || ok):
		return fmt.Errorf("suspended, but the device is wanted or a deadline is set")
	case !w.clean && w.d.session.hold != holdHeld && !w.open:
		return fmt.Errorf("%v: a zombie's objects may be left, but the device does not count as held", s)
	}
	return nil
}

func (w *deviceWatcher) advance(d time.Duration) error {
	return advance(&w.now, d, w.d.NextDeadline, func() error { return w.do(Tick{}) })
}

// resetOutcomes are those by which a reset ends.
var resetOutcomes = []reset.Outcome{
	reset.OutcomeDone, reset.OutcomeFailed, reset.OutcomeTimeout, reset.OutcomeHeld, reset.OutcomeDenied, reset.OutcomeAbsent,
}

func (w *deviceWatcher) anyEvent(t *rapid.T) DeviceEvent {
	class := Class(rapid.IntRange(0, int(NumClass)).Draw(t, "class"))
	age := uint64(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "age"))
	id := rapid.SampledFrom([]Identity{same, same, other}).Draw(t, "device")
	id.Index = uint32(rapid.IntRange(0, 3).Draw(t, "index"))
	id.Dead = rapid.IntRange(0, 3).Draw(t, "dead") == 0
	w.cmd++
	ends := sayGraceOver
	switch {
	case w.d.reset.pending:
		ends = sayEnded(rapid.SampledFrom(resetOutcomes).Draw(t, "outcome"))
	case rapid.Bool().Draw(t, "pending"):
		return sayPending
	}
	return rapid.SampledFrom([]DeviceEvent{
		Opened{Op: w.opening - age, Identity: same},
		Opened{Op: w.opening - age, Identity: same},
		Opened{Op: w.opening - age, Class: class, Identity: same},
		Closed{w.gen - uint32(age)},
		Closed{w.gen},
		sayGraceOver,
		ends,
		ends,
		Listed{Op: w.refresh - age, Devices: []Identity{id}},
		Listed{Op: w.refresh},
		Listed{Devices: []Identity{id}},
		Listed{},
		Fault{Gen: genOf(t, w.d.gen), Class: class},
		Fault{Gen: w.d.gen, Class: ClassDeviceError},
		Checked{Gen: genOf(t, w.d.gen), Class: class},
		Asked{Reason: ReasonVerbFailed, Gen: genOf(t, w.d.gen)},
		Command{w.cmd, Do(rapid.IntRange(0, int(numDo)-1).Draw(t, "command"))},
		Tick{},
	}).Draw(t, "event")
}

// driveToHealth answers every request with success until the device is healthy, except the first
// Open if it hangs. Only a device that was given up needs a command.
func (w *deviceWatcher) driveToHealth(hangs bool) error {
	var ev DeviceEvent
	for range 60 {
		w.cmd++
		switch d := w.d; {
		case w.opening != 0 && hangs:
			hangs, ev = false, nil
		case w.opening != 0:
			ev = Opened{Op: w.opening, Identity: w.device()}
		case w.closing:
			ev = Closed{w.gen}
		case d.reset.pending:
			ev = sayEnded(reset.OutcomeDone)
		case w.refresh != 0:
			ev = Listed{Op: w.refresh, Devices: []Identity{w.device()}}
		case d.suspension.on:
			ev = Command{w.cmd, DoResume}
		case d.state == DeviceHealthy:
			return nil
		case d.state == DeviceDropping && d.reset.wanted:
			ev = sayPending
		case d.list.absent, d.state == DeviceStarting && len(d.list.devices) == 0:
			ev = Listed{Devices: []Identity{w.device()}}
		case d.state == DeviceGivenUp:
			ev = Command{w.cmd, DoRecover}
		default:
			ev = nil
		}
		if ev == nil { // time passes
			at, ok := w.d.NextDeadline()
			if !ok {
				return fmt.Errorf("%v waits for nothing", w.d.state)
			}
			if err := w.advance(at.Sub(w.now)); err != nil {
				return err
			}
		} else if err := w.do(ev); err != nil {
			return err
		}
	}
	return fmt.Errorf("not healthy after 60 steps: %v on %#v", w.d.state, ev)
}

// device returns the machine's device.
func (w *deviceWatcher) device() Identity {
	if w.d.list.born {
		return w.d.list.id
	}
	return same
}

// TestR21DeviceInvariants applies days of random events. There are never two sessions at
// once; nothing is opened while a reset is pending; a release is reported only if nothing is
// held; a zombie's objects keep the device held; each command gets one answer; each state,
// except suspended and given up, has a deadline or waits for an answer; and once every request
// succeeds, except one opening that may hang, the device becomes healthy without a command, unless
// it was given up.
func TestR21DeviceInvariants(t *testing.T) { rapid.Check(t, deviceInvariants) }

// FuzzR21Invariants is TestR21DeviceInvariants, guided by coverage.
func FuzzR21Invariants(f *testing.F) {
	f.Add(make([]byte, 1<<16)) // more than any run draws
	f.Fuzz(rapid.MakeFuzz(deviceInvariants))
}

func deviceInvariants(t *rapid.T) {
	w := newDeviceWatcher(DeviceConfig{
		AllowForeign: rapid.Bool().Draw(t, "foreign"),
	})
	for range rapid.IntRange(1, 150).Draw(t, "events") {
		check(t, w.do(w.anyEvent(t)))
		check(t, w.advance(rapid.SampledFrom(delays).Draw(t, "delay")))
	}
	check(t, w.driveToHealth(rapid.Bool().Draw(t, "an opening hangs")))
	for id, n := range w.answers {
		if n != 1 {
			t.Fatalf("command %d has %d answers", id, n)
		}
	}
}

// TestR21DeviceBackOff: a device that fails as soon as it is open is opened with growing
// pauses, whatever a reset does to the instance and however it ends.
func TestR21DeviceBackOff(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newDeviceWatcher(DeviceConfig{})
		id, opens := same, 0
		check(t, w.do(Listed{Devices: []Identity{id}}))
		for end := epoch.Add(time.Hour); w.now.Before(end); {
			switch d := w.d; {
			case w.opening != 0:
				opens++
				check(t, w.do(Opened{Op: w.opening, Identity: id}))
			case w.closing:
				check(t, w.do(Closed{w.gen}))
			case w.refresh != 0:
				check(t, w.do(Listed{Op: w.refresh, Devices: []Identity{id}}))
			case d.state == DeviceHealthy:
				check(t, w.do(Fault{Gen: d.gen, Class: ClassDeviceError}))
			case d.state == DeviceDropping && !d.reset.pending:
				check(t, w.do(sayPending))
			case d.state == DeviceDropping:
				outcome := rapid.SampledFrom([]reset.Outcome{reset.OutcomeDone, reset.OutcomeDone, reset.OutcomeHeld, reset.OutcomeFailed}).Draw(t, "outcome")
				when := rapid.IntRange(0, 3).Draw(t, "replaced")
				if outcome == reset.OutcomeHeld { // the device was not reset
					when = 0
				}
				if when == 1 { // the list shows the change before the end
					id.Index++
					check(t, w.do(Listed{}))
					check(t, w.do(Listed{Devices: []Identity{id}}))
				}
				if when == 2 { // no event reports the change
					id.Index++
				}
				check(t, w.do(sayEnded(outcome)))
				if when == 3 { // the list shows it late
					id.Index++
					check(t, w.do(Listed{}))
					check(t, w.do(Listed{Devices: []Identity{id}}))
				}
			default:
				at, ok := d.NextDeadline()
				if !ok {
					t.Fatalf("%v has no deadline", d.state)
				}
				check(t, w.advance(at.Sub(w.now)))
			}
		}
		if opens > 40 { // 3, then pauses of 10, 20, ... 300 s, and a second opening for each instance that is listed late
			t.Fatalf("opened %d times in an hour, want at most 40", opens)
		}
	})
}

// TestR24RemovalsNeedNoPause: an operator removes and adds the device again and again, and each time its
// verbs fail before the list shows the removal. Without means of a reset, that is no effect of a reset,
// and the device is opened as soon as it is back. Otherwise it may be one, so pauses follow.
func TestR24RemovalsNeedNoPause(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		noReset := rapid.Bool().Draw(t, "no reset")
		w := newDeviceWatcher(DeviceConfig{NoReset: noReset})
		id, paused := same, 0
		list := []Identity{id}
		check(t, w.do(Listed{Devices: list}))
		settle := func() {
			for range 10 {
				switch {
				case w.opening != 0:
					check(t, w.do(Opened{Op: w.opening, Identity: id}))
				case w.closing:
					check(t, w.do(Closed{w.gen}))
				case w.refresh != 0:
					check(t, w.do(Listed{Op: w.refresh, Devices: list}))
				}
			}
		}
		settle()
		for range 10 {
			check(t, w.do(Fault{Gen: w.d.gen, Class: ClassDeviceError}))
			settle()
			check(t, w.do(sayPending))
			early := rapid.Bool().Draw(t, "the removal is listed before the reset has ended")
			if list = nil; early {
				check(t, w.do(Listed{}))
			}
			check(t, w.do(sayEnded(reset.OutcomeDone)))
			settle()
			check(t, w.do(Listed{}))
			check(t, w.advance(time.Duration(rapid.IntRange(1, 500).Draw(t, "ms"))*time.Millisecond))
			id.Index++
			list = []Identity{id}
			check(t, w.do(Listed{Devices: list}))
			settle()
			for ; w.d.state != DeviceHealthy; paused++ {
				at, ok := w.d.NextDeadline()
				if !ok {
					t.Fatalf("%v has no deadline", w.d.state)
				}
				check(t, w.advance(at.Sub(w.now)))
				settle()
			}
			check(t, w.advance(100*time.Millisecond))
		}
		if (paused == 0) != noReset {
			t.Fatalf("%d pauses, no reset: %v", paused, noReset)
		}
	})
}

// TestR22ChoosesItsInstance: the ladder chooses its own device from a list that also has
// other devices, and an earlier instance of the same device. The result of an opening need
// not contain an index.
func TestR22ChoosesItsInstance(t *testing.T) {
	w := newDeviceWatcher(DeviceConfig{})
	old, unknown := same, same
	old.Index, unknown.Index = 3, 0
	for _, ev := range []DeviceEvent{
		Listed{Devices: []Identity{other, same}},
		Opened{Op: 1, Identity: unknown},
		Listed{Devices: []Identity{other, old, same}},
	} {
		if err := w.do(ev); err != nil {
			t.Fatal(err)
		}
	}
	if id := w.d.list.id; id != same || w.d.State() != DeviceHealthy {
		t.Errorf("%+v, %v, want the same device, healthy", id, w.d.State())
	}
}
