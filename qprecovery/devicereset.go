package qprecovery

import "time"

// coordination is the state of the exchange with the coordinator.
type coordination struct {
	pending  uint64 // the reset that is pending; 0: none
	released bool   // the coordinator knows that this process has nothing open
	drop
	settled time.Time // until then a change of instance is an effect of the reset
}

// drop is the state of one drop: the reset that it needs, and what happened in the meantime.
type drop struct {
	wanted  bool // the drop needs a reset
	outcome ResetOutcome
	unplug  bool // the device was removed during the drop, and not by the reset
}

// ours reports whether there is a reset that may cause a change of instance: one that may have
// begun, because this process had nothing open any more, or one that ended just now.
func (c *coordination) ours(now time.Time, s DeviceState) bool {
	begun := s == DeviceDropping && c.wanted && c.pending != 0 && c.released
	return begun || now.Before(c.settled)
}

// over reports whether a drop for the reason why is over, and what went wrong. A failed reset
// changes what the session counts as holding. After a reset the list must have been read.
func (c *coordination) over(s *session, reading bool, why Reason) (bad Reason, over bool) {
	closing := s.state == sessionClosing
	switch {
	case !c.wanted:
		if s.abandoned && s.hold == holdHeld {
			bad = ReasonVerbTimeout
		}
		return bad, !closing
	case c.outcome == ResetTimedOut:
		s.hold = holdHeld
		return ReasonVerbTimeout, true
	case c.outcome == ResetUnknown, c.outcome == ResetDone && (closing || reading), c.outcome == ResetHeld && closing && s.abandoned:
		return ReasonNone, false
	case closing:
		return ReasonVerbFailed, true
	case c.outcome == ResetHeld:
		s.hold = max(s.hold, holdFree)
		return ReasonHeld, true
	case c.outcome == ResetNoDevice:
		s.hold = max(s.hold, holdFree)
		return ReasonDeviceGone, true
	case c.outcome == ResetFailed:
		if why != ReasonOperator && s.hold == holdFree {
			s.hold = holdHeld // it must be reset; a device that worked need not be
		}
		return ReasonVerbFailed, true
	}
	return ReasonNone, true
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
			d.session.hold = holdFresh
		}
		if d.state == DeviceDropping {
			d.out = d.list.refresh(true, d.out)
		}
	case ResetNoDevice:
		d.list.absent, d.list.ours = true, false
	}
}

// endDrop follows the verdict. A device that needed a reset and got none, or that was
// unplugged in the meantime, leaves the reset rung.
func (d *DeviceLadder) endDrop(bad Reason) {
	why := d.why
	switch {
	case d.suspension.on:
		why = ReasonSuspended
	case bad != ReasonNone:
		why = bad
	case d.reset.unplug:
		why = ReasonRemoved
	case d.rung == RungSuspend:
		why = ReasonResumed
	}
	if !d.suspension.on && d.rung == RungDevice && (d.session.hold != holdFresh || d.reset.unplug) {
		d.climb(RungWait, why)
	}
	d.proceed(why)
}
