package qprecovery

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// watcher drives an interface's ladder and checks its invariants after each
// step.
type watcher struct {
	l       *Ladder
	now     time.Time
	op      uint64    // the current operation; 0 if none
	until   time.Time // no other operation may start before
	rung    Rung      // last rung run in this recovery
	traffic trafficState
	asked   int // device resets requested
	entered [NumRung]uint64
	ended   int
}

func newWatcher() *watcher { return &watcher{l: &Ladder{}, now: epoch} }

// do applies an event and returns an error if the step violates an invariant.
func (w *watcher) do(ev Event) error {
	before, answered := w.l.State(), false
	if d, ok := ev.(Done); ok && before.operating() && d.Op == w.op {
		answered, w.op = true, 0
	}
	if _, ok := ev.(Stopped); ok {
		w.op, w.traffic = 0, flowing
	}
	for _, a := range w.l.Step(w.now, ev, nil) {
		if err := w.checkAction(a); err != nil {
			return fmt.Errorf("%v on %#v: %w", before, ev, err)
		}
	}
	if d, ok := ev.(Done); ok && answered && d.Class != ClassSuccess && !escalated(before, w.l.State()) {
		return fmt.Errorf("a failure leads from %v to %v, want a higher rung", before, w.l.State())
	}
	return w.checkState()
}

// escalated reports whether a failure has led to a higher rung, or to the abandonment of
// objects that cannot be released.
func escalated(from, to State) bool {
	switch from {
	case Querying:
		return to.Rung() >= RungResetQP
	case Starting:
		return to == Asking || to == Releasing
	case Releasing:
		return to == Detached || to == GivenUp || to == Starting
	default:
		return to.Rung() > from.Rung()
	}
}

// checkAction checks one action.
func (w *watcher) checkAction(a Action) error {
	switch a := a.(type) {
	case Query:
		return w.checkOperation(a.Op, queryLimit)
	case Prove:
		w.rung = RungRebuildCQ // the rung that requests a proof
		return w.checkOperation(a.Op, proveLimit)
	case Release:
		return w.checkOperation(a.Op, releaseLimit)
	case Run:
		if err := w.checkRung(a.Rung, a.Reason); err != nil {
			return err
		}
		return w.checkOperation(a.Op, states[w.l.State()].limit)
	case RequestReset:
		w.asked++
		return w.checkRung(RungDevice, a.Reason)
	case Entered:
		w.entered[a.Rung]++
	case Ended:
		w.ended++
		h := w.l.History()
		if i := slices.IndexFunc(h, func(r Record) bool { return reflect.DeepEqual(r, a.Record) }); i < 0 || a.End.IsZero() {
			return fmt.Errorf("reports %+v, but the history is %+v", a.Record, h)
		}
	}
	return w.checkTraffic(a)
}

// checkOperation: there are never two operations at once.
func (w *watcher) checkOperation(op uint64, limit time.Duration) error {
	if w.op != 0 && w.now.Before(w.until) {
		return fmt.Errorf("operation %d starts during %d", op, w.op)
	}
	w.op, w.until = op, w.now.Add(limit)
	return nil
}

// checkRung: a failure leads to the next rung; repetition skips only spent
// rungs and never leads to the device.
func (w *watcher) checkRung(to Rung, why Reason) error {
	from := w.rung
	w.rung = to
	switch why {
	case ReasonVerbFailed, ReasonVerbTimeout:
		if to != from+1 && (to != from || to != RungDevice) {
			return fmt.Errorf("%v leads from %v to %v", why, from, to)
		}
	case ReasonRepeated:
		for r := from + 1; r < to; r++ {
			if from != RungNone && !w.l.budget.spent(w.now, r) {
				return fmt.Errorf("rung %v was skipped", r)
			}
		}
		if to > RungRebuildCQ {
			return fmt.Errorf("repetition leads to %v, want the CQ rung at most", to)
		}
	default:
	}
	return nil
}

// checkTraffic: traffic is held before it is released, and the carrier goes
// down before it comes up.
func (w *watcher) checkTraffic(a Action) error {
	var from []trafficState
	was := w.traffic
	switch a.(type) {
	case HoldTraffic:
		from, w.traffic = []trafficState{flowing}, held
	case CarrierDown:
		from, w.traffic = []trafficState{held}, noCarrier
	case CarrierUp:
		from, w.traffic = []trafficState{noCarrier}, held
	case ReleaseTraffic:
		from, w.traffic, w.rung = []trafficState{held}, flowing, RungNone
	default:
		return nil
	}
	if !slices.Contains(from, was) {
		return fmt.Errorf("%T in traffic state %d", a, was)
	}
	return nil
}

// checkState checks the state after a step.
func (w *watcher) checkState() error {
	s := w.l.State()
	if s == Idle || s == Healthy {
		w.rung = RungNone
	}
	if flows := s == Idle || s == Healthy; flows != (w.traffic == flowing) {
		return fmt.Errorf("%v in traffic state %d", s, w.traffic)
	}
	if at, ok := w.l.NextDeadline(); ok && !at.After(w.now) {
		return fmt.Errorf("%v: a deadline is in the past", s)
	}
	if c := w.l.Counts(); c.Rungs != w.entered {
		return fmt.Errorf("%v: reported rungs %v, counted %v", s, w.entered, c.Rungs)
	}
	if open := s != Idle && s != Healthy; w.l.history.open != open {
		return fmt.Errorf("%v: the record is open %v", s, !open)
	}
	return nil
}

// advance advances the time, deadline by deadline.
func (w *watcher) advance(d time.Duration) error {
	return advance(&w.now, d, w.l.NextDeadline, func() error { return w.do(Tick{}) })
}

// advance advances the time now by d, with a tick at each deadline.
func advance(now *time.Time, d time.Duration, next func() (time.Time, bool), tick func() error) error {
	for end := now.Add(d); ; {
		at, ok := next()
		if !ok || at.After(end) {
			*now = end
			return nil
		}
		*now = at
		if err := tick(); err != nil {
			return err
		}
	}
}

// driveToHealth answers every operation with success until the ladder is healthy.
func (w *watcher) driveToHealth() error {
	for range 20 {
		var ev Event = Tick{}
		switch s := w.l.State(); {
		case s == Healthy:
			return nil
		case s == Idle:
			ev = Attached{w.l.NextGen()}
		case s.operating():
			ev = Done{Op: w.l.op.id, State: hca.QPErr}
		case s == Asking:
			ev = DeviceDown{}
		case s == Detached, s == GivenUp:
			ev = DeviceUp{}
		case s == Pausing:
			if err := w.advance(pauseMost); err != nil {
				return err
			}
		}
		if w.l.State() == Idle {
			w.l.Step(w.now, DeviceUp{}, nil)
		}
		if err := w.do(ev); err != nil {
			return err
		}
	}
	return fmt.Errorf("not healthy: %v", w.l.State())
}

var (
	delays   = []time.Duration{0, 0, time.Microsecond, time.Millisecond, 300 * time.Millisecond, time.Second, 5 * time.Second, time.Minute, time.Hour}
	topRungs = []Rung{RungNone, RungResetQP, RungRebuildCQ, RungDevice, RungGiveUp}
)

// genOf draws a generation near the current one.
func genOf(t *rapid.T, last uint32) uint32 {
	return last + 1 - min(last+1, uint32(rapid.SampledFrom([]int{1, 1, 1, 1, 0, 2, 3}).Draw(t, "age")))
}

// anyEvent draws an event of any kind.
func (w *watcher) anyEvent(t *rapid.T) Event {
	switch rapid.IntRange(0, 12).Draw(t, "event") {
	case 0, 1, 2, 3:
		return Fault{Gen: genOf(t, w.l.gens.last), Class: Class(rapid.IntRange(0, int(NumClass)).Draw(t, "class"))}
	case 4:
		return Suspected{Gen: genOf(t, w.l.gens.last), EventsLost: rapid.Bool().Draw(t, "events lost")}
	case 5, 6, 7:
		return w.success(t)
	case 8:
		d := w.success(t)
		d.Class = Class(rapid.IntRange(1, int(NumClass)).Draw(t, "failure"))
		return d
	case 9:
		return rapid.SampledFrom([]Event{DeviceDown{}, DeviceUp{}, DeviceUp{}, DeviceGaveUp{}, Stopped{}}).Draw(t, "device")
	case 10:
		why := rapid.SampledFrom([]Reason{ReasonNone, ReasonPortChanged}).Draw(t, "why")
		return Order{rapid.SampledFrom(topRungs).Draw(t, "order"), why}
	case 11:
		return Tick{}
	default:
		return Attached{genOf(t, w.l.gens.last+1)}
	}
}

func (w *watcher) success(t *rapid.T) Done {
	op := w.l.op.id - uint64(rapid.SampledFrom([]int{0, 0, 0, 0, 1}).Draw(t, "age of op"))
	return Done{
		Op: op, State: hca.QPState(rapid.IntRange(0, int(hca.NumQPState)).Draw(t, "found")),
		Frozen: rapid.IntRange(0, 3).Draw(t, "frozen") == 0,
	}
}

// harmless draws an event that must not lead to a reset of the device: any completion, any
// event that is not fatal, any failure outside the ladder that is not attributed to the
// device, a suspected freeze, a proof that fails for another reason than the device, or
// another operation that succeeds, with any resulting state.
func (w *watcher) harmless(t *rapid.T) Event {
	gen := genOf(t, w.l.gens.last)
	switch rapid.IntRange(0, 5).Draw(t, "event") {
	case 0:
		return Fault{Gen: gen, Class: OfCompletion(hca.WCStatus(rapid.IntRange(0, int(hca.NumWCStatus)).Draw(t, "status")))}
	case 1:
		types := rapid.Map(rapid.IntRange(0, int(hca.NumEventType)-1), func(n int) hca.EventType { return hca.EventType(n) })
		notFatal := func(e hca.EventType) bool { return e != hca.EventDeviceFatal }
		return Fault{Gen: gen, Class: OfEvent(types.Filter(notFatal).Draw(t, "type"))}
	case 2:
		return Fault{Gen: gen, Class: rapid.SampledFrom(notOfDevice).Draw(t, "class")}
	case 3, 4:
		return Suspected{Gen: gen}
	default:
		done := Done{Op: w.l.op.id, State: hca.QPState(rapid.IntRange(0, int(hca.QPErr)).Draw(t, "found"))}
		if w.l.State() == Proving {
			done.Class = rapid.SampledFrom(notOfDevice).Draw(t, "class")
		}
		return done
	}
}

// notOfDevice lists the classes that are not attributed to the device.
var notOfDevice = []Class{
	ClassSuccess, ClassFlushed, ClassRequestError, ClassQPError, ClassCQError, ClassQueueFull, ClassSilentPeer,
	ClassTransient, ClassNoResource, ClassRefused, ClassPort, ClassIgnored, NumClass,
}

func check(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

// TestR06Invariants applies days of random events. No rung is skipped, a failure always
// escalates, there are never two operations at once, frames flow only in health, and after a
// minute of health every recovery starts again at the lowest rung.
func TestR06Invariants(t *testing.T) { rapid.Check(t, invariants) }

// FuzzR06Invariants is TestR06Invariants, guided by coverage.
func FuzzR06Invariants(f *testing.F) {
	f.Add(make([]byte, 1<<16)) // more than any run draws
	f.Fuzz(rapid.MakeFuzz(invariants))
}

func invariants(t *rapid.T) {
	w := newWatcher()
	for range rapid.IntRange(1, 150).Draw(t, "events") {
		check(t, w.do(w.anyEvent(t)))
		check(t, w.advance(rapid.SampledFrom(delays).Draw(t, "delay")))
	}
	check(t, w.driveToHealth())
	check(t, w.advance(time.Minute))
	for r := range NumRung {
		if r != RungDevice && w.l.budget.spent(w.now, r) {
			t.Fatalf("%v is spent after a minute of health", r)
		}
	}
}

// TestR29EachRungAndEndIsReported: the reported rungs are those that were counted, and each
// record of the history that has ended was reported once. The history has room for all.
func TestR29EachRungAndEndIsReported(t *testing.T) {
	all := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWatcher()
		check(t, w.do(Attached{1}))
		for range rapid.IntRange(1, MaxRecords).Draw(t, "events") {
			check(t, w.do(w.anyEvent(t)))
		}
		ended := w.l.History()
		ended = slices.DeleteFunc(ended, func(r Record) bool { return r.End.IsZero() })
		if len(ended) != w.ended {
			t.Fatalf("%d ends were reported, the history has %d", w.ended, len(ended))
		}
		all += w.ended
	})
	if t.Logf("%d recoveries ended", all); all == 0 {
		t.Error("no recovery ended")
	}
}

// TestR07NothingHarmlessResetsTheDevice: only a fatal event, a proven freeze, a failed or
// timed-out verb or the operator's command leads to the device rung. Other events never do,
// in any order and number.
func TestR07NothingHarmlessResetsTheDevice(t *testing.T) {
	pace := []time.Duration{0, 0, 0, time.Millisecond, time.Second, time.Minute}
	rapid.Check(t, func(t *rapid.T) {
		w := newWatcher()
		check(t, w.do(Attached{1}))
		for range rapid.IntRange(1, 300).Draw(t, "events") {
			check(t, w.do(w.harmless(t)))
			d := rapid.SampledFrom(pace).Draw(t, "delay")
			if w.l.State().operating() {
				d = min(d, time.Millisecond)
			}
			check(t, w.advanceAnswering(d))
			if w.asked > 0 || w.l.State().Rung() > RungRebuildCQ {
				t.Fatalf("state %v, %d resets, want the CQ rung at most, and no reset", w.l.State(), w.asked)
			}
		}
	})
}

// TestR07EveryHarmlessSequence checks exhaustively that nothing harmless resets the device:
// it runs every sequence of six inputs on a ladder with one use left in each budget.
func TestR07EveryHarmlessSequence(t *testing.T) {
	inputs := []func(l *Ladder) Event{
		func(l *Ladder) Event { return Fault{Gen: l.gens.last, Class: ClassRequestError} },
		func(l *Ladder) Event { return Fault{Gen: l.gens.last, Class: ClassFlushed} },
		func(l *Ladder) Event { return Fault{Gen: l.gens.oldest[ScopeCQs], Class: ClassCQError} },
		func(l *Ladder) Event { return Suspected{Gen: l.gens.last} },
		func(l *Ladder) Event { return Done{Op: l.op.id, State: hca.QPRTS} },
		func(l *Ladder) Event { return Done{Op: l.op.id, State: hca.QPSQE} },
		func(l *Ladder) Event { return Done{Op: l.op.id, State: hca.QPErr} },
		func(l *Ladder) Event {
			if l.State() != Proving {
				return Tick{}
			}
			return Done{Op: l.op.id, Class: ClassNoResource}
		},
	}
	const length = 6
	sequences := 1
	for range length {
		sequences *= len(inputs)
	}
	for n := range sequences {
		w := newWatcher()
		if err := w.do(Attached{1}); err != nil {
			t.Fatal(err)
		}
		for r := RungNone; r <= RungRebuildCQ; r++ {
			for range rungs[r].uses - 1 {
				w.l.budget.use(w.now, r)
			}
		}
		rest := n
		for range length {
			if w.l.State() == Pausing {
				w.now = w.l.op.due
				if err := w.do(Tick{}); err != nil {
					t.Fatal(err)
				}
			}
			w.now = w.now.Add(time.Millisecond)
			if err := w.do(inputs[rest%len(inputs)](w.l)); err != nil {
				t.Fatal(err)
			}
			rest /= len(inputs)
			if w.asked > 0 || w.l.State().Rung() > RungRebuildCQ {
				t.Fatalf("sequence %d: %v, %d resets, want the CQ rung at most, and no reset", n, w.l.State(), w.asked)
			}
		}
	}
}

// advanceAnswering advances the time and answers each operation that starts.
func (w *watcher) advanceAnswering(d time.Duration) error {
	for end := w.now.Add(d); ; {
		at, ok := w.l.NextDeadline()
		if !ok || at.After(end) {
			w.now = end
			return nil
		}
		w.now = at
		if w.l.State().operating() {
			if err := w.do(Done{Op: w.l.op.id, State: hca.QPErr}); err != nil {
				return err
			}
			continue
		}
		if err := w.do(Tick{}); err != nil {
			return err
		}
	}
}

// TestR07RepetitionWithBackOff: for a day, work requests fail immediately after each
// recovery. The ladder stays at the CQ rung and runs it once a minute.
func TestR07RepetitionWithBackOff(t *testing.T) {
	w := newWatcher()
	var err error
	for err = w.do(Attached{1}); err == nil && w.now.Before(epoch.Add(24*time.Hour)); {
		switch s := w.l.State(); {
		case s == Healthy:
			err = w.do(Fault{Gen: w.l.gens.last, Class: ClassRequestError})
		case s.operating():
			err = w.do(Done{Op: w.l.op.id, State: hca.QPSQE})
		default:
			err = w.advance(w.l.op.due.Sub(w.now))
		}
	}
	c := w.l.Counts()
	if err != nil || w.asked != 0 || c.Rungs[RungRebuildCQ] < 1440 || c.Rungs[RungRebuildCQ] > 1450 {
		t.Errorf("%v; %d resets, %d rebuilds, want no reset and 1440 to 1450 rebuilds", err, w.asked, c.Rungs[RungRebuildCQ])
	}
}
