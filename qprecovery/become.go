package qprecovery

import "time"

// become is the only function that sets the state. It does everything that
// entering the state requires.
func (l *Ladder) become(now time.Time, to State, why Reason) {
	from := l.state
	l.state, l.why = to, why
	l.next = pending{}
	l.op.deadline = deadline{}
	switch to {
	case Healthy:
		l.becomeHealthy(now, from)
	case Idle:
		l.becomeIdle(now)
	default:
		l.becomeIll(now, from)
	}
}

// becomeHealthy releases the frames, then handles a fault or the loss of the
// device that was noted in the meantime.
func (l *Ladder) becomeHealthy(now time.Time, from State) {
	if from.Rung() != RungNone {
		l.doubt.asked = time.Time{} // a flush after a rung is another incident (R4)
	}
	l.budget.healthy(now)
	l.out = l.traffic.release(l.out)
	l.endRecord(now, false)
	early := l.doubt.early
	l.doubt.early = Fault{}
	switch {
	case l.device == ViewDown:
		l.openRecord(now, now, ReasonDeviceReset)
		l.apply(now, causeDown, ReasonDeviceReset)
	case early.Class != ClassSuccess:
		l.fault(now, early)
	}
}

// becomeIdle leaves everything to the shell.
func (l *Ladder) becomeIdle(now time.Time) {
	l.endRecord(now, true)
	l.budget.ill(now)
	l.traffic.reset()
	l.doubt = doubt{}
	if l.device == ViewDown {
		l.emit(Ready{})
	}
}

// endRecord ends the record of the current recovery and reports it.
func (l *Ladder) endRecord(now time.Time, stopped bool) {
	if record, ok := l.history.end(now, stopped); ok {
		l.emit(Ended{record})
	}
}

// becomeIll emits HoldTraffic before the state's own action, so that the data
// path stops first.
func (l *Ladder) becomeIll(now time.Time, from State) {
	l.history.beginRecord(now, now, l.why)
	l.budget.ill(now)
	l.out = l.traffic.hold(now, l.out)
	if from.Rung() != l.state.Rung() || l.state == Asking && from != Asking {
		l.history.step(now, l.state.Rung(), l.why)
		l.emit(Entered{l.state.Rung(), l.why})
	}
	if limit := states[l.state].limit; limit > 0 {
		l.op.id++
		l.op.set(now, limit)
	}
	l.act(now)
}

// act emits the action of the state.
func (l *Ladder) act(now time.Time) {
	if l.state.runs() {
		l.run(now)
		return
	}
	switch l.state { //nolint:exhaustive // the others run a rung, or become handles them
	case Querying:
		l.doubt.asked, l.doubt.flushed = now, false
		l.emit(Query{l.op.id})
	case Proving:
		l.emit(Prove{l.op.id})
	case Pausing:
		l.pause = BackOff(l.pause, pauseFirst, pauseMost)
		l.op.due = now.Add(l.pause)
	case Asking:
		l.op.due = now.Add(askLimit)
		l.emit(RequestReset{l.why})
	case Releasing:
		l.emit(Release{l.op.id})
	case Detached:
		l.detached(now)
	case GivenUp:
		l.out = l.traffic.cut(l.out)
	}
}

// run starts the state's rung. The objects that it creates get a new generation; a resumed
// QP keeps its work requests, and therefore its generation. The device's ladder counts the
// resets of the device.
func (l *Ladder) run(now time.Time) {
	rung := l.state.Rung()
	if !l.why.ordered() && !rung.Replaces(ScopeDevice) {
		l.budget.use(now, rung)
	}
	if l.state == Rebuilding && l.why != ReasonBackOff && !l.why.ordered() {
		l.pause = 0
	}
	if rung.Replaces(ScopeQueues) {
		l.gens.renew(l.gens.last+1, rungs[rung].scope)
	}
	l.doubt.flushed, l.doubt.early = false, Fault{}
	if rung.Replaces(ScopeDevice) {
		l.doubt.frozen, l.doubt.eventless = false, false // they were about the device before its reset
	}
	l.emit(Run{Op: l.op.id, Gen: l.gens.last, Rung: rung, Reason: l.why})
}

// detached reports that the interface is ready, then applies what the device's
// ladder has reported in the meantime.
func (l *Ladder) detached(now time.Time) {
	l.emit(Ready{})
	switch l.device {
	case ViewUp:
		l.apply(now, causeUp, ReasonDeviceBack)
	case ViewGivenUp:
		l.apply(now, causeGaveUp, ReasonGaveUp)
	case ViewDown:
	}
}
