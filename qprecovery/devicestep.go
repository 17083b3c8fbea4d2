package qprecovery

import "time"

// command handles a command.
func (d *DeviceLadder) command(ev Command) {
	answer := ResultDone
	switch {
	case ev.Do == DoSuspend:
		d.suspends = append(d.suspends, ev.ID)
		d.suspend()
		return
	case ev.Do == DoResume && !d.suspended:
		answer = ResultNotSuspended
	case ev.Do == DoResume:
		d.suspended, d.owed = false, 0
		if d.state == DeviceSuspended {
			d.proceed(ReasonResumed)
		}
		if d.state == DeviceStarting {
			d.openFirst()
		}
	case d.suspended:
		answer = ResultSuspended
	case d.state == DeviceStarting:
		d.openFirst()
		if ev.Do == DoReset {
			answer = ResultNotOpen
		}
	case d.state == DeviceHealthy && ev.Do == DoReset:
		d.apply(deviceCauseFault, ReasonOperator)
	case d.state == DeviceHealthy:
		answer = ResultOpen
	case d.state == DeviceWaiting, d.state == DevicePausing, d.state == DeviceGivenUp:
		d.owed = 0
		d.proceed(ReasonOperator)
	case ev.Do == DoRecover: // a reset requested during a reset is merged into it (R15)
		answer = ResultUnderWay
		d.history.counts.Absorbed++
	default:
		d.history.counts.Absorbed++
	}
	d.emit(Answer{ev.ID, answer})
}

// suspend closes the device, if necessary after an opening or closing has ended. A device
// that was given up stays given up.
func (d *DeviceLadder) suspend() {
	d.suspended = d.state != DeviceGivenUp
	switch d.state { //nolint:exhaustive // the others wait for an answer, or rest
	case DeviceHealthy:
		d.apply(deviceCauseSuspend, ReasonSuspended)
	case DevicePausing, DeviceWaiting:
		d.proceed(ReasonSuspended)
	case DeviceStarting:
		if d.session.state == sessionNone {
			d.proceed(ReasonSuspended)
		} else if !d.cancelled {
			d.cancelled = true
			d.emit(CancelOpen{d.session.op})
		}
	}
}

func (d *DeviceLadder) answerSuspends(r Result) {
	for _, id := range d.suspends {
		d.emit(Answer{id, r})
	}
	d.suspends = nil
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
	if r.from == DeviceHealthy && r.rung == RungDevice {
		d.use(why)
	}
	d.become(r, why)
}

// use counts a failure of an open device, regardless of the outcome of its reset. After too
// many failures a pause is due before the device is opened again. Commands of the operator
// do not count.
func (d *DeviceLadder) use(why Reason) {
	switch {
	case why == ReasonOperator:
		d.owed = 0
		return
	case d.budget.spent(d.now, RungDevice):
		d.wait.pause = BackOff(d.wait.pause, resetPauseFirst, resetPauseMost)
	default:
		d.wait.pause = 0
	}
	d.owed = d.wait.pause
	d.budget.use(d.now, RungDevice)
}

// become is the only function that sets the state. It does everything that entering the
// state requires.
func (d *DeviceLadder) become(r *deviceRow, why Reason) {
	d.state = r.to
	d.op.due, d.op.extended, d.patience = time.Time{}, false, time.Time{}
	switch {
	case r.to == DeviceHealthy:
		d.why = why
		d.healthy()
		return
	case r.rung != RungNone && d.born:
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
	d.wait.until, d.list.foreign = time.Time{}, nil
	d.check = d.now.Add(checkEvery)
	if early := d.early; early != ReasonNone {
		d.early = ReasonNone
		d.apply(deviceCauseFault, early)
	}
}

// start sets the timers of the new state, and clears what belongs to an earlier one.
func (d *DeviceLadder) start() {
	switch d.state {
	case DeviceStarting:
		d.op.due = d.now.Add(d.wait.pause)
	case DeviceDropping:
		d.reset.wanted, d.reset.reading, d.reset.unplug, d.reset.outcome = false, false, false, ResetUnknown
		d.op.due = d.now.Add(d.limit())
		d.patience = d.now.Add(d.cfg.Grace)
	case DevicePausing:
		d.op.due = d.now.Add(d.owed)
		d.owed = 0
	case DeviceOpening:
		d.op.id++
		d.gen++
		d.early = ReasonNone
		d.op.due = d.now.Add(openLimit)
	case DeviceWaiting:
		if d.wait.until.IsZero() {
			d.wait.until = d.now.Add(d.cfg.GiveUpAfter)
			d.wait.extended = false
		}
		d.wait.since, d.op.due = d.now, d.now.Add(retryEvery)
	case DeviceGivenUp, DeviceSuspended:
		d.wait.until = time.Time{}
	case DeviceHealthy, numDeviceState:
	}
}

// limit bounds a drop, or an opening.
func (d *DeviceLadder) limit() time.Duration {
	switch {
	case d.state == DeviceOpening:
		return openLimit
	case d.reset.wanted:
		return d.cfg.Grace + d.cfg.ResetLimit + dropMargin
	default:
		return d.cfg.Grace + dropMargin
	}
}

func (d *DeviceLadder) do(what deviceDo, why Reason) {
	switch what {
	case doClose:
		d.close(why, why != ReasonOperator && why != ReasonSuspended)
	case doRequest: // in a reset, the coordinator decides when to abandon users
		d.reset.wanted, d.patience = true, time.Time{}
		d.op.due = d.now.Add(d.limit())
		if d.reset.pending == 0 {
			d.emit(RequestReset{why})
		}
	case doRefresh:
		if d.list.absent {
			d.refresh(false)
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
	if d.state == DeviceHealthy && due(d.now, d.check) {
		d.check = time.Time{}
		d.emit(Check{d.gen})
	}
	if due(d.now, d.patience) {
		d.abandon()
	}
	if due(d.now, d.op.due) {
		d.overdue()
	}
}

// endWait gives the device up. If the wait ends during an attempt to open the device, it
// waits for that attempt to fail. If this process was stopped when the wait ended (see
// stallBound), the wait is extended, because the event of a return may still be queued.
func (d *DeviceLadder) endWait() {
	stalled := d.wait.until.After(d.wait.since) && d.now.Sub(d.wait.until) > stallBound
	switch {
	case d.state != DeviceWaiting || !due(d.now, d.wait.until):
	case stalled && !d.wait.extended:
		d.wait.until, d.wait.extended = d.now.Add(retryEvery), true
	default:
		d.apply(deviceCauseGiveUp, ReasonGaveUp)
	}
}

// overdue handles the deadline of the state.
func (d *DeviceLadder) overdue() {
	switch d.state {
	case DeviceStarting:
		d.openFirst()
	case DevicePausing:
		d.proceed(ReasonBackOff)
	case DeviceWaiting:
		d.retry()
	case DeviceDropping, DeviceOpening:
		switch late := d.now.Sub(d.op.due) > stallBound; {
		case late && !d.op.extended:
			d.op.due, d.op.extended = d.now.Add(d.limit()), true
		case d.state == DeviceOpening:
			d.notOpened(ReasonVerbTimeout)
		default:
			if d.hold != holdFresh {
				d.hold = holdHeld
			}
			d.endDrop(ReasonVerbTimeout)
		}
	case DeviceHealthy, DeviceGivenUp, DeviceSuspended, numDeviceState:
	}
}

// retry tries again, or reads the list again. If a device did not return after its reset,
// the wait for it begins here.
func (d *DeviceLadder) retry() {
	why := ReasonRetry
	switch {
	case d.list.absent && d.rung == RungWait:
		why = d.why
	case d.list.absent:
		why = ReasonRemoved
	}
	d.proceed(why)
}
