package qprecovery

import "time"

// coordination is the state of the exchange with the coordinator.
type coordination struct {
	pending  uint64 // the reset that is pending; 0: none
	released bool   // the coordinator knows that this process has nothing open
	wanted   bool   // the current drop needs a reset
	outcome  ResetOutcome
	reading  bool      // the list is being read after the reset
	unplug   bool      // the device was removed during the drop, and not by the reset
	settled  time.Time // until then a change of instance is an effect of the reset
}

// resetEnded handles the outcome of a reset. After a success it has the list read, because
// the reset may have replaced the instance.
func (d *DeviceLadder) resetEnded(ev ResetEnded) {
	if d.reset.pending == 0 || ev.ID != d.reset.pending {
		d.history.counts.Stale++
		return
	}
	d.reset.pending, d.reset.outcome = 0, ev.Outcome
	switch ev.Outcome { //nolint:exhaustive // the others are for the drop under way alone
	case ResetFailed, ResetTimedOut:
		d.reset.settled = d.now.Add(resetSettle)
	case ResetDone:
		d.reset.settled = d.now.Add(resetSettle)
		if d.session.state == sessionNone {
			d.hold = holdFresh
		}
		if d.state == DeviceDropping {
			d.reset.reading = d.cfg.Lists
			d.refresh(true)
		}
	case ResetNoDevice:
		d.list.absent, d.list.ours = d.cfg.Lists, false
	}
}

// dropped reports whether a drop is over, and what went wrong.
func (d *DeviceLadder) dropped() (bad Reason, over bool) {
	closing := d.session.state == sessionClosing
	switch {
	case d.state != DeviceDropping:
		return ReasonNone, false
	case !d.reset.wanted:
		if d.session.abandoned && d.hold == holdHeld {
			bad = ReasonVerbTimeout
		}
		return bad, !closing
	case d.reset.outcome == ResetTimedOut:
		d.hold = holdHeld
		return ReasonVerbTimeout, true
	case d.reset.outcome == ResetUnknown, d.reset.outcome == ResetDone && (closing || d.reset.reading):
		return ReasonNone, false
	case closing:
		return ReasonVerbFailed, true
	case d.reset.outcome == ResetHeld:
		d.hold = max(d.hold, holdFree)
		return ReasonHeld, true
	case d.reset.outcome == ResetNoDevice:
		d.hold = max(d.hold, holdFree)
		return ReasonDeviceGone, true
	case d.reset.outcome == ResetFailed:
		if d.why != ReasonOperator && d.hold == holdFree {
			d.hold = holdHeld // it must be reset; a device that worked need not be
		}
		return ReasonVerbFailed, true
	}
	return ReasonNone, true
}

// endDrop follows the verdict. A device that needed a reset and got none, or that was
// unplugged in the meantime, leaves the reset rung.
func (d *DeviceLadder) endDrop(bad Reason) {
	why := d.why
	switch {
	case d.suspended:
		why = ReasonSuspended
	case bad != ReasonNone:
		why = bad
	case d.reset.unplug:
		why = ReasonRemoved
	case d.rung == RungSuspend:
		why = ReasonResumed
	}
	if !d.suspended && d.rung == RungDevice && (d.hold != holdFresh || d.reset.unplug) {
		d.climb(RungWait, why)
	}
	d.proceed(why)
}
