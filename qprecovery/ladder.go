package qprecovery

import (
	"cmp"
	"time"

	"ipoibd/hca"
)

const (
	// flushQuiet is the minimum interval between queries caused by flushes
	// alone, because a burst is one incident. A flush within it causes a query
	// at its end.
	flushQuiet = time.Second
	// freezeWindow is the time in health within which another suspected freeze
	// means that rebuilding the CQ did not help.
	freezeWindow = time.Minute
	// pauseFirst and pauseMost bound the back-off at the CQ rung: it doubles
	// each time, and then the interface is tried once a minute forever.
	pauseFirst = time.Second
	pauseMost  = time.Minute
	// stallBound is how late a deadline may be processed before this process
	// (stopped, throttled) is a likelier cause than the device.
	stallBound = 100 * time.Millisecond
)

// Ladder is the ladder of one interface. It must be used by one goroutine. The zero value is in state Idle,
// with the device up.
type Ladder struct {
	state   State
	why     Reason // for which the state was entered
	op      operation
	former  uint64 // the last operation on an earlier session of the device
	next    pending
	gens    generations
	device  DeviceView
	doubt   doubt
	pause   time.Duration // the last back-off; 0 if the last rebuild needed none
	traffic traffic
	budget  budget
	history history
	out     []Action
}

// operation is the current operation; due is also the end of a pause.
type operation struct {
	id uint64
	deadline
}

// deadline is when something is due; zero means never.
type deadline struct {
	due  time.Time
	more time.Duration // by which it can be extended once; 0: it cannot
}

// set makes it due after a limit, by which it can be extended once.
func (d *deadline) set(now time.Time, limit time.Duration) { *d = deadline{now.Add(limit), limit} }

// extend extends a deadline that is handled more than stallBound too late, but only once: this
// process was stopped, and the event that it waits for may still be queued.
func (d *deadline) extend(now time.Time) bool {
	if d.more == 0 || now.Sub(d.due) <= stallBound {
		return false
	}
	*d = deadline{due: now.Add(d.more)}
	return true
}

// pending is the state to enter once the current operation has ended.
type pending struct {
	set bool
	to  State
	why Reason
}

// generations: last is the latest generation; oldest holds the oldest valid one in an
// error, by its scope. A CQ outlives its QP, and a device both.
type generations struct {
	last   uint32
	oldest [numScope]uint32
}

// renew records that the objects in a scope were replaced.
func (g *generations) renew(gen uint32, replaced Scope) {
	g.last = gen
	for s := range replaced + 1 {
		g.oldest[s] = gen
	}
}

// DeviceView is the state of the device that was last reported to a [Ladder].
type DeviceView uint8

// Views of a device, reported by [DeviceUp], [DeviceDown] and [DeviceGaveUp].
const (
	ViewUp DeviceView = iota
	ViewDown
	ViewGivenUp
)

// doubt holds suspicions that are examined later.
type doubt struct {
	asked   time.Time     // when the QP was last queried
	flushed bool          // a flush arrived since then, within flushQuiet
	early   Fault         // about objects that the current operation creates
	frozen  bool          // a freeze was suspected before
	at      time.Duration // when, on the clock of the budget

	eventless   bool          // events were lost before
	eventlessAt time.Duration // when the CQs were rebuilt for that, on the same clock
}

// State returns the current state.
func (l *Ladder) State() State { return l.state }

// Reason returns the reason for which the current state was entered.
func (l *Ladder) Reason() Reason { return l.why }

// Device returns the state of the device that was last reported.
func (l *Ladder) Device() DeviceView { return l.device }

// NextGen returns an unused generation, for [Attached].
func (l *Ladder) NextGen() uint32 { return l.gens.last + 1 }

// History returns the latest recoveries, oldest first, including the current
// one.
func (l *Ladder) History() []Record { return l.history.list() }

// Counts returns the counters since the start.
func (l *Ladder) Counts() Counts { return l.history.counts }

// NextDeadline returns when Step must be called with a Tick if there is no
// earlier event.
func (l *Ladder) NextDeadline() (at time.Time, ok bool) {
	at = l.op.due
	at = Earlier(at, l.traffic.deadline())
	if l.state == Healthy && l.doubt.flushed {
		at = Earlier(at, l.doubt.asked.Add(flushQuiet))
	}
	return at, !at.IsZero()
}

// Earlier returns the earlier of two times; zero means never.
func Earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// due reports whether a deadline has been reached.
func due(now, at time.Time) bool { return !at.IsZero() && !now.Before(at) }

// Step applies an event at the time now, which must not decrease, and appends
// the resulting actions to out. It applies the event before the deadlines that
// are due, so that a result that was queued in the meantime is not too late.
func (l *Ladder) Step(now time.Time, ev Event, out []Action) []Action {
	l.out = out
	l.dispatch(now, ev)
	l.expire(now)
	out, l.out = l.out, nil
	return out
}

func (l *Ladder) emit(a Action) { l.out = append(l.out, a) }

func (l *Ladder) dispatch(now time.Time, ev Event) {
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
		l.device, l.former = ViewUp, l.op.id
		l.apply(now, causeUp, ReasonDeviceBack)
	case DeviceGaveUp:
		l.device = ViewGivenUp
		l.apply(now, causeGaveUp, ReasonGaveUp)
	case Order:
		l.order(now, ev)
	}
}

// attached takes over objects that the shell created itself. A generation that
// was used before is stale.
func (l *Ladder) attached(now time.Time, ev Attached) {
	if ev.Gen <= l.gens.last {
		l.history.counts.Stale++
		return
	}
	if transitions[l.state][causeAttached] == nil {
		l.history.counts.Absorbed++
		return
	}
	l.gens.renew(ev.Gen, ScopeDevice)
	l.apply(now, causeAttached, ReasonNone)
}

// deviceDown starts the release of all objects; an interface without any is
// ready at once.
func (l *Ladder) deviceDown(now time.Time) {
	l.device = ViewDown
	if l.state == Idle || l.state == Detached || l.state == GivenUp {
		l.emit(Ready{})
		return
	}
	l.apply(now, causeDown, ReasonDeviceReset)
}

// Takes reports whether a command would have an effect now. If not, the current
// recovery already does as much, or there is nothing to recover.
func (l *Ladder) Takes(ev Order) bool { return l.transition(rungs[ev.Rung].order) != nil }

func (l *Ladder) order(now time.Time, ev Order) {
	if on := rungs[ev.Rung].order; on != causeNone {
		why := cmp.Or(ev.Reason, ReasonOperator)
		l.openRecord(now, now, why)
		l.apply(now, on, why)
	}
}

// done handles the result of the current operation. Any other result is stale, except that a verb
// that was stuck requests a reset of the device even if the operation exceeded its limit first (R8).
func (l *Ladder) done(now time.Time, ev Done) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case l.state.operating() && ev.Op == l.op.id:
	case c.cause == causeDevice && ev.Op > l.former:
		l.apply(now, c.cause, c.reason)
		return
	default:
		l.history.counts.Stale++
		return
	}
	if ev.Class == ClassSuccess {
		l.result(now, l.found(now, ev))
		return
	}
	// An error of the CQ or the device, or a stuck verb (R8), is also applied as a cause of
	// its own, because it reaches further than the QP.
	if scopes[c.cause] > ScopeQP {
		l.apply(now, c.cause, c.reason)
	}
	l.result(now, causeFailed)
}

// found returns the cause for a successful operation. For a query it depends on the
// QP's state: in SQE its receives still work (IBA 10.3.1); in RTS it works, which is
// limited by a separate budget (R2); in any other state it does not work.
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

// expire handles the deadlines that are due.
func (l *Ladder) expire(now time.Time) {
	switch {
	case !due(now, l.op.due):
	case l.state == Asking: // the reset is requested again
		l.apply(now, causeDue, l.why)
	case !l.state.operating(): // a pause is over
		l.apply(now, causeDue, ReasonBackOff)
	case !l.op.extend(now):
		l.result(now, causeTimeout)
	}
	if l.state == Healthy && l.doubt.flushed && due(now, l.doubt.asked.Add(flushQuiet)) {
		l.suspect(now, Fault{Class: ClassFlushed})
	}
	l.out = l.traffic.expire(now, l.out)
}
