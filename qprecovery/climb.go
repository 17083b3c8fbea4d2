package qprecovery

import "time"

// fault takes a classified error. One of objects that are gone is stale, one
// that moves nothing is absorbed.
func (l *Ladder) fault(now time.Time, ev Fault) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case l.state == Idle || ev.Gen > l.gens.last || ev.Gen < l.oldest(c.cause):
		l.history.counts.Stale++
	case c.cause == causeNone:
		l.history.counts.Absorbed++
	case l.early(ev, c.cause):
		l.doubt.early = larger(l.doubt.early, ev)
	case c.cause == causeSuspect && l.state == Healthy:
		l.suspect(now, ev)
	default:
		l.begin(now, ev.Since, c.reason)
		l.history.blame(ev.Request)
		l.apply(now, c.cause, c.reason)
	}
}

// oldest is the earliest generation that a fault with this cause may bear: a CQ
// outlives its QP, a device both.
func (l *Ladder) oldest(on cause) uint32 {
	switch on {
	case causeCQ:
		return l.gens.cq
	case causeDevice:
		return l.gens.device
	default:
		return l.gens.qp
	}
}

// early reports whether a fault is about what the operation under way is making
// and asks for no higher rung: then it is looked at once the operation is done.
func (l *Ladder) early(ev Fault, on cause) bool {
	making := l.state == Resetting || l.state == Recreating || l.state == Rebuilding || l.state == Starting
	r := transitions[Healthy][on]
	return making && ev.Gen == l.gens.last && r.to.Rung() <= l.state.Rung()
}

// larger returns the fault that leads further; the zero one leads nowhere.
func larger(a, b Fault) Fault {
	if classes[b.Class].cause > classes[a.Class].cause {
		return b
	}
	return a
}

// suspect has the QP queried: for a flush no more than once in flushQuiet (R4).
func (l *Ladder) suspect(now time.Time, ev Fault) {
	if ev.Class == ClassFlushed && now.Before(l.doubt.asked.Add(flushQuiet)) {
		l.doubt.flushed = true
		l.history.counts.Absorbed++
		return
	}
	c := classes[ev.Class]
	l.begin(now, ev.Since, c.reason)
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
	l.begin(now, ev.Since, ReasonFreezeSuspected)
	on, health := causeCQ, l.budget.at(now)
	if l.doubt.frozen && health-l.doubt.at < freezeWindow {
		on = causeFreeze
	}
	l.doubt.frozen, l.doubt.at = true, health
	l.apply(now, on, ReasonFreezeSuspected)
}

// begin opens the record of a recovery that starts from health.
func (l *Ladder) begin(now, since time.Time, why Reason) {
	if l.state == Healthy {
		l.history.begin(now, since, why)
	}
}

// apply looks a cause from outside up in the table: it is followed at once, kept
// until the operation under way has ended, or absorbed.
func (l *Ladder) apply(now time.Time, on cause, why Reason) {
	switch r := l.follows(on); {
	case r == nil:
		l.history.counts.Absorbed++
	case l.state.operating():
		l.next = pending{true, r.to, why}
	default:
		l.enter(now, r.to, why)
	}
}

// follows returns the transition that a cause from outside makes, at once or after the
// operation under way; nil: the cause is absorbed. Of the causes that wait for an
// operation to end, only that with the highest state is kept.
func (l *Ladder) follows(on cause) *row {
	r := transitions[l.state][on]
	if r != nil && l.state.operating() && l.next.set && r.to <= l.next.to {
		return nil
	}
	return r
}

// result ends the operation under way: to where its result leads, or higher if
// something larger came meanwhile. States are in the order of their rungs.
func (l *Ladder) result(now time.Time, on cause) {
	to, why := transitions[l.state][on].to, l.reasonOf(on)
	if l.next.set && (l.next.to.Rung() > to.Rung() || l.next.to == Releasing) {
		to, why = l.next.to, l.next.why
	}
	l.enter(now, to, why)
}

// reasonOf names the reason of a result.
func (l *Ladder) reasonOf(on cause) Reason {
	switch {
	case on == causeFailed && l.state == Querying, on == causeTimeout && l.state == Querying:
		return ReasonQueryFailed
	case on == causeFailed && l.state == Proving:
		return l.why // the freeze stays suspected
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

// enter becomes a state, or the next one for as long as the budget of its rung is
// spent; that ends with a pause at the CQ rung (R6). Budgets do not limit queries and
// proofs, nor the end of a back-off, nor the operator.
func (l *Ladder) enter(now time.Time, to State, why Reason) {
	free := why == ReasonOperator || why == ReasonBackOff
	for !free && to.operating() && to.Rung() != RungNone && l.budget.spent(now, to.Rung()) {
		l.history.counts.Reasons[why]++
		to, why = transitions[to][causeRepeated].to, ReasonRepeated
	}
	l.become(now, to, why)
}
