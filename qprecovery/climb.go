package qprecovery

import "time"

// fault handles a classified error. It counts an error of former objects as stale, and
// absorbs an error without a cause.
func (l *Ladder) fault(now time.Time, ev Fault) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case l.state == Idle || ev.Gen > l.gens.last || ev.Gen < l.gens.oldest[scopes[c.cause]]:
		l.history.counts.Stale++
	case c.cause == causeNone:
		l.history.counts.Absorbed++
	case l.isEarly(ev, c.cause):
		l.doubt.early = larger(l.doubt.early, ev)
	case c.cause == causeSuspect && l.state == Healthy:
		l.suspect(now, ev)
	default:
		l.openRecord(now, ev.Since, c.reason)
		l.history.blame(ev.Request)
		l.apply(now, c.cause, c.reason)
	}
}

// isEarly reports whether a fault is about the objects that the current
// operation creates, and reaches no further than they do. Such a fault is
// handled once the operation has ended.
func (l *Ladder) isEarly(ev Fault, on cause) bool {
	return l.state.runs() && ev.Gen == l.gens.last && l.state.Rung().Replaces(scopes[on])
}

// larger returns the fault with the larger scope; the zero Fault has none.
func larger(a, b Fault) Fault {
	if scopes[classes[b.Class].cause] > scopes[classes[a.Class].cause] {
		return b
	}
	return a
}

// suspect starts a query of the QP, for flushes at most once per flushQuiet
// (R4).
func (l *Ladder) suspect(now time.Time, ev Fault) {
	if ev.Class == ClassFlushed && now.Before(l.doubt.asked.Add(flushQuiet)) {
		l.doubt.flushed = true
		l.history.counts.Absorbed++
		return
	}
	c := classes[ev.Class]
	l.openRecord(now, ev.Since, c.reason)
	l.history.blame(ev.Request)
	l.apply(now, c.cause, c.reason)
}

// suspected handles a suspected freeze by rebuilding the CQ and its QP. If a freeze is
// suspected again soon, the device is reset only if probes on a fresh QP and CQ prove
// the freeze (R8).
func (l *Ladder) suspected(now time.Time, ev Suspected) {
	switch {
	case l.state == Idle || ev.Gen != l.gens.last:
		l.history.counts.Stale++
		return
	case l.state != Healthy:
		l.history.counts.Absorbed++
		return
	}
	if ev.EventsLost {
		l.eventsLost(now, ev.Since)
		return
	}
	l.openRecord(now, ev.Since, ReasonFreezeSuspected)
	on, health := causeCQ, l.budget.at(now)
	if l.doubt.frozen && health-l.doubt.at < freezeWindow {
		on = causeFreeze
	}
	l.doubt.frozen, l.doubt.at = true, health
	l.apply(now, on, ReasonFreezeSuspected)
}

// eventsLost rebuilds the CQs, because the events of one of them are lost: once in freezeWindow of
// health, and within the budget of that rung. The queue pair works meanwhile, only slowly, which is
// better than the pauses of the rung.
func (l *Ladder) eventsLost(now, since time.Time) {
	health := l.budget.at(now)
	if l.doubt.eventless && health-l.doubt.eventlessAt < freezeWindow || l.budget.spent(now, RungRebuildCQ) {
		l.history.counts.Absorbed++
		return
	}
	l.doubt.eventless, l.doubt.eventlessAt = true, health
	l.openRecord(now, since, ReasonEventsLost)
	l.apply(now, causeCQ, ReasonEventsLost)
}

// openRecord opens the record of a recovery that starts in health.
func (l *Ladder) openRecord(now, since time.Time, why Reason) {
	if l.state == Healthy {
		l.history.beginRecord(now, since, why)
	}
}

// apply applies an external cause: its transition is made at once, kept until
// the current operation has ended, or absorbed.
func (l *Ladder) apply(now time.Time, on cause, why Reason) {
	switch r := l.transition(on); {
	case r == nil:
		l.history.counts.Absorbed++
	case l.state.operating():
		l.next = pending{true, r.to, why}
	default:
		l.enter(now, r.to, why)
	}
}

// transition returns the transition that an external cause makes, at once or after the
// current operation, or nil if the cause is absorbed. Of the causes that wait for an
// operation to end, only the one whose state outranks the others is kept.
func (l *Ladder) transition(on cause) *row {
	r := transitions[l.state][on]
	if r != nil && l.state.operating() && l.next.set && !r.to.outranks(l.next.to) {
		return nil
	}
	return r
}

// result ends the current operation. It enters the state that the result leads to, or the pending
// state if that has a higher rung. If both lead to Asking, the pending state has the reason: it
// says which error of the device it was, not only that a verb has failed.
func (l *Ladder) result(now time.Time, on cause) {
	to, why := transitions[l.state][on].to, l.reasonOf(on)
	if l.next.set && (l.next.to == Asking || l.next.to.outranks(to)) {
		to, why = l.next.to, l.next.why
	}
	l.enter(now, to, why)
}

// reasonOf returns the reason for the transition that a result makes.
func (l *Ladder) reasonOf(on cause) Reason {
	switch {
	case on == causeFailed && l.state == Querying, on == causeTimeout && l.state == Querying:
		return ReasonQueryFailed
	case on == causeFailed && l.state == Proving:
		return l.why // the freeze is still suspected
	case on == causeFailed:
		return ReasonVerbFailed
	case on == causeTimeout:
		return ReasonVerbTimeout
	case on == causeRepeated:
		return ReasonRepeated
	case on == causeProven:
		return ReasonFreezePersists
	}
	return l.why
}

// enter enters a state. While the budget of the state's rung is spent, it moves on to
// the next one, up to a pause at the CQ rung (R6). Budgets limit neither queries and
// proofs, nor a rebuild after a back-off, nor an order.
func (l *Ladder) enter(now time.Time, to State, why Reason) {
	free := why.ordered() || why == ReasonBackOff
	for !free && to.runs() && l.budget.spent(now, to.Rung()) {
		l.history.counts.Reasons[why]++
		to, why = transitions[to][causeRepeated].to, ReasonRepeated
	}
	l.become(now, to, why)
}
