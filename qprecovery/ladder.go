package qprecovery

import (
	"time"

	"ipoibd/hca"
)

const (
	// flushQuiet is how often flushes alone may have the QP queried: a burst is
	// one incident. A flush within it is followed by a query at its end.
	flushQuiet = time.Second
	// freezeWindow is the time in health within which another suspicion shows that
	// rebuilding the CQ did not help.
	freezeWindow = time.Minute
	// pauseFirst and pauseMost bound the back-off at the CQ rung: twice as long
	// each time, and an interface is tried once a minute for ever.
	pauseFirst = time.Second
	pauseMost  = time.Minute
	// stallBound is how late a deadline may be looked at before the lateness
	// says more about this process (stopped, throttled) than about the device.
	stallBound = 100 * time.Millisecond
)

// Config of an interface's ladder. The zero value is the default.
type Config struct {
	// CarrierBound is how long frames are held before the carrier goes down;
	// 0 is [DefaultCarrierBound].
	CarrierBound time.Duration
}

// Ladder is the ladder of one interface. It belongs to one goroutine.
type Ladder struct {
	state   State
	why     Reason // of the state
	op      operation
	next    pending
	gens    generations
	device  deviceView
	doubt   doubt
	pause   time.Duration // the last back-off; 0 when the last rebuild needed none
	traffic traffic
	budget  budget
	history history
	out     []Action
}

// operation is the one under way; due is also the end of a pause.
type operation struct {
	id       uint64
	due      time.Time
	extended bool // a stall of this process was forgiven
}

// pending is what an operation under way keeps from being entered.
type pending struct {
	set bool
	to  State
	why Reason
}

// generations: last was given out last; the others are the earliest that a
// fault of such an object may bear.
type generations struct{ last, qp, cq, device uint32 }

// deviceView is what the device's ladder said last.
type deviceView uint8

const (
	deviceUp deviceView = iota
	deviceDown
	deviceGivenUp
)

// doubt is what waits for a better time to be looked at.
type doubt struct {
	asked   time.Time     // the QP was queried
	flushed bool          // a flush since, within flushQuiet
	early   Fault         // of objects that the operation under way makes
	frozen  bool          // a freeze was suspected
	at      time.Duration // when, on the clock of budget
}

// NewLadder returns the ladder of an interface that is Idle, with its device up.
func NewLadder(cfg Config) *Ladder {
	if cfg.CarrierBound <= 0 {
		cfg.CarrierBound = DefaultCarrierBound
	}
	return &Ladder{traffic: traffic{bound: cfg.CarrierBound}}
}

// State returns the state.
func (l *Ladder) State() State { return l.state }

// Reason returns why the state was entered.
func (l *Ladder) Reason() Reason { return l.why }

// NextGen returns a generation that was never used, for [Attached].
func (l *Ladder) NextGen() uint32 { return l.gens.last + 1 }

// History returns the last recoveries, oldest first, the one under way last.
func (l *Ladder) History() []Record { return l.history.list() }

// Counts returns what happened since the start.
func (l *Ladder) Counts() Counts { return l.history.counts }

// NextDeadline returns when Step wants to be called without an event.
func (l *Ladder) NextDeadline() (at time.Time, ok bool) {
	at = l.op.due
	at = earlier(at, l.traffic.deadline())
	if l.state == Healthy && l.doubt.flushed {
		at = earlier(at, l.doubt.asked.Add(flushQuiet))
	}
	return at, !at.IsZero()
}

// earlier returns the earlier of two times, of which the zero one is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// due reports whether a deadline is there.
func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// Step takes an event at the time now, which does not run backwards, and appends
// what is to be done to out. The event comes before the deadlines that are due:
// an answer that lay waiting is not too late.
func (l *Ladder) Step(now time.Time, ev Event, out []Action) []Action {
	l.out = out
	l.take(now, ev)
	l.expire(now)
	out, l.out = l.out, nil
	return out
}

func (l *Ladder) emit(a Action) { l.out = append(l.out, a) }

func (l *Ladder) take(now time.Time, ev Event) {
	switch ev := ev.(type) {
	case Attached:
		l.attached(now, ev)
	case Stopped:
		l.become(now, Idle, ReasonNone)
	case Fault:
		l.fault(now, ev)
	case Suspected:
		l.suspected(now, ev)
	case Done:
		l.done(now, ev)
	case DeviceDown:
		l.deviceDown(now)
	case DeviceUp:
		l.device = deviceUp
		l.apply(now, causeUp, ReasonDeviceBack)
	case DeviceGaveUp:
		l.device = deviceGivenUp
		l.apply(now, causeGaveUp, ReasonGaveUp)
	case Order:
		l.order(now, ev)
	}
}

// attached takes the shell's own objects over. A generation that was used
// before is stale.
func (l *Ladder) attached(now time.Time, ev Attached) {
	if ev.Gen <= l.gens.last {
		l.history.counts.Stale++
		return
	}
	if transitions[l.state][causeAttached] == nil {
		l.history.counts.Absorbed++
		return
	}
	l.gens = generations{ev.Gen, ev.Gen, ev.Gen, ev.Gen}
	l.apply(now, causeAttached, ReasonNone)
}

// deviceDown lets go; an interface that holds nothing is ready at once.
func (l *Ladder) deviceDown(now time.Time) {
	l.device = deviceDown
	if l.state == Idle || l.state == Detached || l.state == GivenUp {
		l.emit(Ready{})
		return
	}
	l.apply(now, causeDown, ReasonDeviceReset)
}

var orders = map[Rung]cause{
	RungResetQP: causeOrderQP, RungRebuildCQ: causeOrderCQ, RungDevice: causeDevice,
}

// Takes reports whether an order would change anything now. If not, the recovery under
// way already does as much, or there is nothing to recover.
func (l *Ladder) Takes(ev Order) bool { return l.follows(orders[ev.Rung]) != nil }

func (l *Ladder) order(now time.Time, ev Order) {
	if on, ok := orders[ev.Rung]; ok {
		l.begin(now, now, ReasonOperator)
		l.apply(now, on, ReasonOperator)
	}
}

// done takes the result of the operation under way; any other is stale.
func (l *Ladder) done(now time.Time, ev Done) {
	if !l.state.operating() || ev.Op != l.op.id {
		l.history.counts.Stale++
		return
	}
	if ev.Class == ClassSuccess {
		l.result(now, l.found(now, ev))
		return
	}
	l.failed(now, classes[min(ev.Class, ClassIgnored)])
}

// failed ends the operation; a CQ or a device that is in error is a larger error
// besides, and so is a verb that hangs (R8).
func (l *Ladder) failed(now time.Time, c meaning) {
	if c.cause == causeCQ || c.cause == causeDevice {
		l.apply(now, c.cause, c.reason)
	}
	l.result(now, causeFailed)
}

// found returns the cause that the result of a successful operation is. After a query
// that depends on the QP's state: in SQE its receives continue (IBA 10.3.1); in RTS it
// works, which is counted against a budget of its own (R2); in any other state it does
// not work.
func (l *Ladder) found(now time.Time, ev Done) cause {
	switch {
	case l.state == Proving && ev.Frozen:
		return causeProven
	case l.state != Querying:
		return causeDone
	case ev.State == hca.QPSQE:
		return causeFoundSQE
	case ev.State != hca.QPRTS:
		return causeFoundBad
	}
	l.history.counts.FoundRTS++
	if l.budget.spent(now, RungNone) {
		return causeRepeated
	}
	l.budget.use(now, RungNone)
	return causeDone
}

// expire does what is due.
func (l *Ladder) expire(now time.Time) {
	switch {
	case !due(now, l.op.due):
	case !l.state.operating():
		l.dueNow(now)
	case now.Sub(l.op.due) > stallBound && !l.op.extended:
		l.op.due, l.op.extended = now.Add(states[l.state].limit), true
	default:
		l.result(now, causeTimeout)
	}
	if l.state == Healthy && l.doubt.flushed && due(now, l.doubt.asked.Add(flushQuiet)) {
		l.suspect(now, Fault{Class: ClassFlushed})
	}
	l.out = l.traffic.expire(now, l.out)
}

// dueNow ends a pause, or asks for the reset again.
func (l *Ladder) dueNow(now time.Time) {
	why := ReasonBackOff
	if l.state == Asking {
		why = l.why
	}
	l.apply(now, causeDue, why)
}
