package qprecovery

import (
	"slices"
	"time"
)

// session is the session of the device, and what this process may still hold once it has ended.
// There is at most one. It exists from its Open on.
type session struct {
	state     sessionState
	gen       uint32
	op        uint64    // of its Open
	index     uint32    // of its instance
	patience  time.Time // when the users of a session that closes are abandoned
	abandoned bool
	hold      hold
}

type sessionState uint8

const (
	sessionNone    sessionState = iota
	sessionOpening              // an Open is unanswered
	sessionOpen
	sessionClosing // a Close is unanswered
)

// hold is what this process may still hold of the device. This alone decides whether the
// device may be opened.
type hold uint8

const (
	// holdHeld: this process may have a context open on the hardware, even if only a
	// zombie, or the device failed and so did its reset. It must be reset before it is
	// opened.
	holdHeld hold = iota
	// holdFree: this process has nothing open.
	holdFree
	// holdFresh: as holdFree, and the device was reset, or came as another instance, since
	// something was last open.
	holdFresh
)

// begin begins the opening of the next session.
func (s *session) begin(op uint64, gen, index uint32) {
	*s = session{state: sessionOpening, gen: gen, op: op, index: index, hold: s.hold}
}

// close asks the users to release the session, if there is one. If the device does not
// work, the session is failed first, so that no user waits for it.
func (s *session) close(why Reason, fail bool, out []DeviceAction) []DeviceAction {
	if s.state == sessionOpen {
		s.state = sessionClosing
	}
	return append(out, Close{Gen: s.gen, Reason: why, Fail: fail})
}

// abandon stops waiting for users that have not released the session.
func (s *session) abandon(out []DeviceAction) []DeviceAction {
	s.patience = time.Time{}
	if s.state != sessionClosing || s.abandoned {
		return out
	}
	s.abandoned = true
	return append(out, Abandon{s.gen})
}

func (d *DeviceLadder) closed(ev Closed) {
	s := &d.session
	if s.state != sessionClosing || ev.Gen != s.gen {
		d.history.counts.Stale++
		return
	}
	s.state = sessionNone
	switch {
	case d.reset.outcome == ResetDone:
		s.hold = holdFresh
	case d.reset.outcome == ResetHeld: // it cannot be reset now, so it is opened as it is
		s.hold = holdFree
	case s.abandoned:
		s.hold = holdHeld
	case otherInstance(s.index, d.id.Index):
		s.hold = holdFresh
	case d.state != DeviceDropping && d.reset.wanted: // the drop has failed
		s.hold = holdHeld
	default:
		s.hold = holdFree
	}
}

// openFirst tries to open a device that was never open, unless that is under way.
func (d *DeviceLadder) openFirst() {
	if d.session.state == sessionNone {
		d.op = operation{id: d.op.id + 1}
		d.suspension.cancelled = false
	}
}

// opened handles the result of an Open. A session that comes too late is closed.
func (d *DeviceLadder) opened(ev Opened) {
	if d.session.state != sessionOpening || ev.Op != d.session.op {
		d.history.counts.Stale++
		return
	}
	wanted := ev.Op == d.op.id && (d.state == DeviceOpening || d.state == DeviceStarting)
	if ev.Class != ClassSuccess {
		d.session.state = sessionNone
		if wanted {
			d.notOpened(ReasonVerbFailed)
		}
		return
	}
	d.session.state, d.session.hold = sessionOpen, holdHeld
	d.reset.wanted, d.reset.outcome = false, ResetUnknown
	if !d.born {
		d.born, d.id, d.list.absent = true, ev.Identity, false
		if i := slices.IndexFunc(d.list.devices, ev.Identity.Same); i >= 0 {
			d.id = d.list.devices[i]
		}
		d.session.index = d.id.Index
	}
	switch {
	case !wanted:
		d.out = d.session.close(ReasonVerbTimeout, false, d.out)
	case d.suspension.on:
		d.apply(deviceCauseSuspend, ReasonSuspended)
	case d.list.absent || otherInstance(d.session.index, d.id.Index):
		d.apply(deviceCauseRemoved, ReasonRemoved)
	default:
		d.apply(deviceCauseOpened, d.why)
	}
}

// notOpened ends an opening that failed.
func (d *DeviceLadder) notOpened(why Reason) {
	switch {
	case d.suspension.on:
		d.apply(deviceCauseUnwanted, ReasonSuspended)
	case d.state == DeviceStarting && d.suspension.cancelled: // and resumed since
		d.openFirst()
	default:
		if d.state == DeviceStarting {
			d.budget.pause = BackOff(d.budget.pause, startPause, StartPauseMost)
		}
		d.apply(deviceCauseFailed, why)
	}
}
