package qprecovery

import (
	"cmp"
	"time"

	"ipoibd/qprecovery/reset"
)

// suspension says whether the device is suspended, and which commands wait until it is closed.
type suspension struct {
	on         bool
	cancelled  bool     // the first opening was cancelled by a suspension
	unanswered []uint64 // DoSuspend commands
}

// answer answers the waiting commands.
func (s *suspension) answer(r Result, out []DeviceAction) []DeviceAction {
	for _, id := range s.unanswered {
		out = append(out, Answer{id, r})
	}
	s.unanswered = nil
	return out
}

// command handles a command.
func (d *DeviceLadder) command(ev Command) {
	answer := ResultDone
	switch {
	case ev.Do == DoSuspend:
		d.suspension.unanswered = append(d.suspension.unanswered, ev.ID)
		d.suspend()
		return
	case ev.Do == DoResume && !d.suspension.on:
		answer = ResultNotSuspended
	case ev.Do == DoResume:
		d.suspension.on, d.budget.owed = false, 0
		if d.state == DeviceSuspended {
			d.proceed(ReasonResumed)
		}
		if d.state == DeviceStarting {
			d.openFirst()
		}
	case d.suspension.on:
		answer = ResultSuspended
	case ev.Do == DoReset && d.resettable():
		d.apply(deviceCauseOrdered, ReasonOperator)
	case d.state == DeviceStarting:
		d.openFirst()
		if ev.Do == DoReset {
			answer = ResultNotOpen
		}
	case d.state == DeviceHealthy:
		answer = ResultOpen
	case d.state == DeviceWaiting, d.state == DevicePausing, d.state == DeviceGivenUp:
		d.budget.owed = 0
		d.proceed(ReasonOperator)
	case ev.Do == DoRecover: // a reset requested during a reset is merged into it (R15)
		answer = ResultUnderWay
		d.history.counts.Absorbed++
	default:
		d.history.counts.Absorbed++
	}
	d.emit(Answer{ev.ID, answer})
}

// resettable reports whether a reset can begin: the device is present, and no reset is under way.
func (d *DeviceLadder) resettable() bool {
	switch d.state { //nolint:exhaustive // the others are no part of a reset
	case DeviceDropping:
		return !d.reset.wanted && !d.list.gone()
	case DeviceOpening:
		return d.rung != RungDevice && !d.list.gone()
	}
	return d.list.identify() && !d.list.gone()
}

// suspend closes the device, if necessary after an opening or closing has ended. A device
// that was given up stays given up.
func (d *DeviceLadder) suspend() {
	d.suspension.on = d.state != DeviceGivenUp
	switch d.state { //nolint:exhaustive // the others wait for an answer, or rest
	case DeviceHealthy:
		d.apply(deviceCauseSuspend, ReasonSuspended)
	case DevicePausing, DeviceWaiting:
		d.proceed(ReasonSuspended)
	case DeviceStarting:
		if d.session.state == sessionNone {
			d.proceed(ReasonSuspended)
		} else if !d.suspension.cancelled {
			d.suspension.cancelled = true
			d.emit(CancelOpen{d.session.op})
		}
	}
}

// proceed follows the verdict.
func (d *DeviceLadder) proceed(why Reason) {
	on := d.verdict()
	if on == deviceCauseSpent {
		why = ReasonRepeated
	}
	d.apply(on, why)
}

// apply follows the row of a cause in the table, or absorbs a cause without one.
func (d *DeviceLadder) apply(on deviceCause, why Reason) {
	r := deviceTransitions[d.state][on]
	if r == nil {
		d.history.counts.Absorbed++
		return
	}
	switch {
	case on == deviceCauseFault:
		d.budget.failed(d.now)
	case why == ReasonOperator:
		d.budget.owed = 0
	}
	d.become(r, why)
}

// become is the only function that sets the state. It does everything that entering the
// state requires.
func (d *DeviceLadder) become(r *deviceRow, why Reason) {
	if d.state != r.to {
		d.since = d.now
	}
	d.state = r.to
	d.op.deadline = deadline{}
	d.session.waitForUsers(deadline{})
	switch {
	case r.to == DeviceHealthy:
		d.why = why
		d.healthy()
		return
	case r.rung != RungNone && d.list.born:
		d.climb(r.rung, why)
	}
	d.why = why
	d.start()
	for _, do := range r.do {
		d.do(do, why)
	}
}

// climb enters a rung, unless the recovery is on it.
func (d *DeviceLadder) climb(to Rung, why Reason) {
	d.history.beginRecord(d.now, d.now, why)
	d.budget.ill(d.now)
	if d.rung != to {
		d.rung = to
		d.history.step(d.now, to, why)
		d.emit(Entered{to, why})
	}
}

func (d *DeviceLadder) healthy() {
	if record, ok := d.history.end(d.now, false); ok {
		d.emit(Ended{record})
	}
	d.rung = RungNone
	d.budget.healthy(d.now)
	d.wait, d.list.foreign, d.list.dead = wait{}, nil, dead{}
	d.check = checks{due: d.now.Add(checkEvery)}
	if early := d.early; early != ReasonNone {
		d.early = ReasonNone
		d.apply(deviceCauseFault, early)
	}
}

// start sets the timers of the new state, and clears what belongs to an earlier one.
func (d *DeviceLadder) start() {
	switch d.state {
	case DeviceStarting:
		d.op.set(d.now, d.wait.pause)
	case DeviceDropping:
		d.reset.drop, d.wait.pause = drop{}, 0
		d.op.set(d.now, d.cfg.Grace+dropMargin)
		d.session.waitForUsers(deadline{due: d.now.Add(d.cfg.Grace)})
	case DevicePausing:
		d.op.set(d.now, d.budget.owed)
		d.budget.owed = 0
	case DeviceOpening:
		d.op.id++
		d.gen++
		d.early = ReasonNone
		d.op.set(d.now, openLimit)
	case DeviceWaiting:
		if d.wait.due.IsZero() {
			d.wait.deadline = deadline{d.now.Add(d.cfg.GiveUpAfter), waitMore}
		}
		d.wait.since = d.now
		d.op.set(d.now, cmp.Or(d.wait.pause, RetryEvery))
	case DeviceGivenUp, DeviceSuspended:
		d.wait = wait{}
	case DeviceHealthy, numDeviceState:
	}
}

func (d *DeviceLadder) do(what deviceDo, why Reason) {
	switch what {
	case doClose:
		d.out = d.session.close(why, why != ReasonOperator && why != ReasonSuspended, d.out)
	case doRequest: // in a reset, the agreement decides when to abandon users
		d.reset.wanted = true
		d.session.waitForUsers(deadline{})
		d.op.set(d.now, d.cfg.Grace+reset.DefaultLimit+dropMargin)
		if !d.reset.pending {
			d.request()
		}
	case doRefresh:
		if d.list.absent {
			d.out = d.list.refresh(false, d.out)
		}
	case doPause:
		d.emit(Paused{d.op.due.Sub(d.now)})
	case doGiveUp:
		d.emit(GiveUp{why})
	}
}

// expire handles the deadlines that are due.
func (d *DeviceLadder) expire() {
	d.endWait()
	if d.state == DeviceHealthy && due(d.now, d.check.due) {
		d.check.due = time.Time{}
		d.emit(Check{d.gen})
	}
	if p := &d.session.patience; due(d.now, p.due) && !p.extend(d.now) {
		d.abandon()
	}
	if due(d.now, d.op.due) {
		d.overdue()
	}
	if due(d.now, d.reset.due()) {
		d.agree(reset.Event{Kind: reset.Look})
	}
}

// endWait gives the device up. If the wait ends during an attempt to open the device, it
// waits for that attempt to fail.
func (d *DeviceLadder) endWait() {
	if d.state != DeviceWaiting || !due(d.now, d.wait.due) {
		return
	}
	if d.wait.due.After(d.wait.since) && d.wait.extend(d.now) {
		return
	}
	d.apply(deviceCauseGiveUp, ReasonGaveUp)
}

// overdue handles the deadline of the state.
func (d *DeviceLadder) overdue() {
	switch d.state {
	case DeviceStarting:
		d.openFirst()
	case DevicePausing:
		d.proceed(ReasonBackOff)
	case DeviceWaiting:
		if d.list.dead.spent(d.now) {
			d.apply(deviceCauseFault, ReasonDeviceError)
			return
		}
		why := ReasonRetry
		if d.list.absent {
			why = d.why
		}
		d.proceed(why)
	case DeviceDropping:
		if d.op.extend(d.now) {
			return
		}
		if d.session.hold != holdFresh {
			d.session.hold = holdHeld
		}
		d.endDrop(ReasonVerbTimeout)
	case DeviceOpening:
		if !d.op.extend(d.now) { // others have not ended their reset
			d.apply(deviceCauseFailed, ReasonVerbTimeout)
		}
	case DeviceHealthy, DeviceGivenUp, DeviceSuspended, numDeviceState:
	}
}
