package qprecovery

import (
	"time"

	"ipoibd/qprecovery/reset"
)

// Resets is this process's part in the agreement about resets of the device with the other processes that
// use it, as [reset.Machine] describes it.
type Resets interface {
	Step(now time.Time, ev reset.Event, out []reset.Action) []reset.Action
	NextDeadline() (at time.Time, ok bool)
}

// coordination is what this process knows of a reset of the device, no matter which process does it.
type coordination struct {
	with     Resets // nil: not joined yet
	news     bool   // the agreement has said something since advance was called
	pending  bool   // the device must be closed, and not be opened before the reset has ended
	released bool   // the agreement knows that this process has nothing open
	drop
	settled time.Time // until then a change of instance is an effect of the reset
}

// drop is the state of one drop: the reset that it needs, and what happened in the meantime.
type drop struct {
	wanted  bool          // the drop needs a reset
	outcome reset.Outcome // "": it has not ended
	unplug  bool          // the device was removed during the drop, and not by the reset
}

// due returns when the agreement has to look at the locks.
func (c *coordination) due() (at time.Time) {
	if c.with != nil {
		at, _ = c.with.NextDeadline()
	}
	return at
}

// ours reports whether there is a reset that may cause a change of instance: one that may have
// begun, because this process had nothing open any more, or one that ended just now.
func (c *coordination) ours(now time.Time, s DeviceState) bool {
	begun := s == DeviceDropping && c.wanted && c.pending && c.released
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
	case c.outcome == reset.OutcomeTimeout:
		s.hold = holdHeld
		return ReasonVerbTimeout, true
	case c.outcome == "", c.outcome == reset.OutcomeDone && (closing || reading):
		return ReasonNone, false
	case closing:
		return ReasonVerbFailed, true
	case c.outcome == reset.OutcomeHeld:
		s.hold = max(s.hold, holdFree)
		return ReasonHeld, true
	case c.outcome == reset.OutcomeAbsent:
		s.hold = max(s.hold, holdFree)
		return ReasonDeviceGone, true
	case c.outcome == reset.OutcomeFailed, c.outcome == reset.OutcomeDenied:
		if why != ReasonOperator && s.hold == holdFree {
			s.hold = holdHeld // it must be reset; a device that worked need not be
		}
		return ReasonVerbFailed, true
	}
	return ReasonNone, true
}

// join joins the agreement about resets, if that was not possible before.
func (d *DeviceLadder) join() error {
	if d.reset.with != nil {
		return nil
	}
	with, err := d.cfg.Join(d.list.devices)
	if err != nil {
		return err
	}
	d.reset.with = with
	d.agree(reset.Event{Kind: reset.Look})
	return nil
}

// request requests a reset. Without the locks it fails at once; only an operator can request a reset of a
// device that was never open.
func (d *DeviceLadder) request() {
	err := d.join()
	if err == nil {
		d.agree(reset.Event{Kind: reset.Want})
		return
	}
	failed := reset.Ended{Outcome: reset.OutcomeFailed, Detail: "cannot open the locks: " + err.Error()}
	d.emit(ResetAction{failed})
	d.resetEnded(failed.Outcome)
}

// agree passes an event to the agreement about resets, and acts on what it says.
func (d *DeviceLadder) agree(ev reset.Event) {
	if d.reset.with == nil {
		return
	}
	for _, a := range d.reset.with.Step(d.now, ev, nil) {
		d.reset.news = true
		switch a := a.(type) {
		case reset.Release:
			d.emit(ResetAction{a})
			d.reset.pending, d.reset.released = true, false
		case reset.Reset:
			if a.Abandon { // the reset does not wait for the users any longer (R14)
				d.abandon()
			}
			d.emit(ResetAction{a})
		case reset.Ended:
			d.emit(ResetAction{a})
			if a.Abandon {
				d.abandon()
			}
			d.resetEnded(a.Outcome)
		default:
			d.emit(ResetAction{a})
		}
	}
}

// resetEnded handles the outcome of a reset. After a success it has the list read, because
// the reset may have replaced the instance.
func (d *DeviceLadder) resetEnded(o reset.Outcome) {
	d.reset.pending, d.reset.outcome = false, o
	switch o {
	case reset.OutcomeFailed, reset.OutcomeDenied, reset.OutcomeTimeout:
		d.reset.settled = d.now.Add(resetSettle)
	case reset.OutcomeDone:
		d.reset.settled = d.now.Add(resetSettle)
		if d.session.state == sessionNone {
			d.session.hold = holdFresh
		}
		if d.state == DeviceDropping {
			d.out = d.list.refresh(true, d.out)
		}
	case reset.OutcomeAbsent:
		d.list.absent, d.list.ours = true, false
	case reset.OutcomeHeld:
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
