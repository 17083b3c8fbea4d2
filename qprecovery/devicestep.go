package qprecovery

import "time"

// apply looks a cause from outside up in the table: it is followed at once, kept
// until the operation under way has ended, or absorbed. Of what is kept only
// a removal exists.
func (d *DeviceLadder) apply(now time.Time, on deviceCause, why Reason) {
	switch r := deviceTransitions[d.state][on]; {
	case r == nil:
		d.history.counts.Absorbed++
	case d.state.operating():
		d.next = why
	default:
		d.become(now, r.to, why)
	}
}

// result ends the operation under way: to where its result leads, or to where a
// removal meanwhile does, if that is higher. A device that was not opened need
// not be let go. One that is not wanted any more goes no further.
func (d *DeviceLadder) result(now time.Time, on deviceCause) {
	to, why := deviceTransitions[d.state][on].to, d.reasonOf(on)
	if d.next == ReasonRemoved && to.Rung() < RungWait {
		to, why = deviceTransitions[d.state][deviceCauseRemoved].to, ReasonRemoved
	}
	if d.view.suspended {
		to, why = d.unwanted(on), ReasonSuspended
	}
	d.become(now, to, why)
}

// unwanted is where a result leads while the device is not wanted.
func (d *DeviceLadder) unwanted(on deviceCause) DeviceState {
	if d.opening() && on == deviceCauseDone {
		return DeviceSuspending
	}
	return DeviceSuspended
}

func (d *DeviceLadder) reasonOf(on deviceCause) Reason {
	switch on {
	case deviceCauseFailed:
		return ReasonVerbFailed
	case deviceCauseTimeout:
		return ReasonVerbTimeout
	case deviceCauseSpent:
		return ReasonRepeated
	case deviceCauseOthers:
		return ReasonHeld
	default:
		return d.why
	}
}

// expire does what is due; the wait may end while an operation runs, and is over
// once that has failed.
func (d *DeviceLadder) expire(now time.Time) {
	d.endWait(now)
	d.overdue(now)
	d.endWait(now)
}

func (d *DeviceLadder) endWait(now time.Time) {
	if d.state == DeviceWaiting && due(now, d.wait.until) {
		d.apply(now, deviceCauseGiveUp, ReasonGaveUp)
	}
}

// overdue checks a healthy device, and ends a pause or an operation; see stallBound
// for a stall of this process.
func (d *DeviceLadder) overdue(now time.Time) {
	if d.state == DeviceHealthy && due(now, d.check) {
		d.check = time.Time{}
		d.emit(Check{d.gen})
	}
	switch {
	case !due(now, d.op.due):
	case d.state == DeviceWaiting:
		d.look(now)
	case d.state == DevicePausing:
		d.apply(now, deviceCauseDue, ReasonBackOff)
	case now.Sub(d.op.due) > stallBound && !d.op.extended:
		d.op.due, d.op.extended = now.Add(d.limit()), true
	default:
		d.result(now, deviceCauseTimeout)
	}
}

// look tries again, or has the list read again while the device is not in it.
func (d *DeviceLadder) look(now time.Time) {
	if d.view.listed {
		d.try(now, ReasonRetry)
		return
	}
	d.op.due = now.Add(retryEvery)
	d.emit(Refresh{})
}

// try opens the device that is waited for, or lets it go first.
func (d *DeviceLadder) try(now time.Time, why Reason) {
	on := deviceCauseDue
	if d.view.held {
		on = deviceCauseHeld
	}
	d.apply(now, on, why)
}

// limit bounds the operation of the state.
func (d *DeviceLadder) limit() time.Duration {
	if d.opening() {
		return openLimit
	}
	return d.cfg.Grace + dropMargin
}

// become is the only writer of the state. It does what belongs to entering it.
func (d *DeviceLadder) become(now time.Time, to DeviceState, why Reason) {
	from := d.state
	d.state, d.why, d.next = to, why, ReasonNone
	d.op.due, d.op.extended = time.Time{}, false
	if to == DeviceHealthy {
		d.becomeHealthy(now)
		return
	}
	d.history.begin(now, now, why)
	d.budget.ill(now)
	if from.Rung() != to.Rung() && (from != DeviceSuspended || to != DeviceOpening) { // which ends a suspension
		d.history.step(now, to.Rung(), why)
	}
	if to.operating() {
		d.op.id++
		d.op.due = now.Add(d.limit())
	}
	d.act(now, from)
}

func (d *DeviceLadder) becomeHealthy(now time.Time) {
	d.history.end(now, false)
	d.budget.healthy(now)
	d.wait.until, d.view.foreign = time.Time{}, nil
	d.check = now.Add(checkEvery)
	d.emit(ResetEnded{d.gen})
	if d.early != ReasonNone {
		d.apply(now, deviceCauseFault, d.early)
	}
}

// act does a state's action.
func (d *DeviceLadder) act(now time.Time, from DeviceState) {
	switch d.state {
	case DeviceDropping, DeviceReleasing, DeviceSuspending:
		d.emit(Drop{d.op.id, d.why})
	case DeviceOpening, DeviceRetrying:
		d.open(now)
	case DevicePausing:
		d.wait.pause = backOff(d.wait.pause, resetPauseFirst, resetPauseMost)
		d.op.due = now.Add(d.wait.pause)
	case DeviceWaiting:
		d.waiting(now, from)
	case DeviceGivenUp:
		d.wait.until = time.Time{}
		d.emit(GiveUp{d.why})
	case DeviceSuspended:
		d.wait.until = time.Time{}
		if !d.view.suspended {
			d.resume(now)
		}
	case DeviceHealthy, numDeviceState:
	}
}

func (d *DeviceLadder) open(now time.Time) {
	if d.state == DeviceOpening && !d.ordered() {
		if !d.budget.spent(now, RungDevice) {
			d.wait.pause = 0
		}
		d.budget.use(now, RungDevice)
	}
	d.gen++
	d.early = ReasonNone
	d.emit(Open{d.op.id, d.gen})
}

// ordered reports whether the state was entered by somebody's word, which no
// budget counts.
func (d *DeviceLadder) ordered() bool { return d.why == ReasonOperator || d.why == ReasonResumed }

// waiting tries at once where the device is in the list and somebody said so, or
// it was let go just now: reset or not, it may serve.
func (d *DeviceLadder) waiting(now time.Time, from DeviceState) {
	if d.wait.until.IsZero() {
		d.wait.until = now.Add(d.cfg.GiveUpAfter)
	}
	d.op.due = now.Add(retryEvery)
	switch {
	case !d.view.listed:
		d.emit(Refresh{})
	case d.ordered(), !d.view.held && (from == DeviceReleasing || from == DeviceDropping):
		d.try(now, d.why)
	}
}
