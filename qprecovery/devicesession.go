package qprecovery

import (
	"time"

	"ipoibd/qprecovery/reset"
)

// session is the session of the device, and what this process may still hold once it has ended.
// There is at most one. It exists from its Open on.
type session struct {
	state     sessionState
	gen       uint32
	op        uint64   // of its Open
	index     uint32   // of its instance
	patience  deadline // when an opening, or the users of a session that closes, are abandoned
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
	// zombie, or the device failed, or could not be opened, and has not been reset since. It
	// must be reset before it is opened.
	holdHeld hold = iota
	// holdFree: this process has nothing open.
	holdFree
	// holdFresh: as holdFree, and the device was reset, or came as another instance, since
	// something was last open.
	holdFresh
	numHold
)

var holds = [numHold]string{"held", "free", "fresh"}

func (h hold) String() string { return holds[h] }

// begin begins the opening of the next session.
func (s *session) begin(now time.Time, op uint64, gen, index uint32) {
	*s = session{state: sessionOpening, gen: gen, op: op, index: index, hold: s.hold}
	s.patience.set(now, openLimit)
}

// wanted reports whether a device in this state waits for the opening of the session.
func (s *session) wanted(in DeviceState, op uint64) bool { return in.opens() && s.op == op }

// close asks the users to release the session, if there is one. If the device does not
// work, the session is failed first, so that no user waits for it.
func (s *session) close(why Reason, fail bool, out []DeviceAction) []DeviceAction {
	if s.state == sessionOpen {
		s.state = sessionClosing
	}
	return append(out, Close{Gen: s.gen, Reason: why, Fail: fail})
}

// abandon stops waiting for users that have not released the session, or for its opening.
func (d *DeviceLadder) abandon() {
	s := &d.session
	opening := s.state == sessionOpening
	s.patience = deadline{}
	if s.abandoned || !opening && s.state != sessionClosing {
		return
	}
	s.abandoned = true
	d.emit(Abandon{s.gen})
	if opening {
		d.notOpened(ClassStuck)
	}
}

// waitForUsers sets when the users are abandoned. An opening has no users, and its own limit.
func (s *session) waitForUsers(until deadline) {
	if s.state != sessionOpening {
		s.patience = until
	}
}

func (d *DeviceLadder) closed(ev Closed) {
	s := &d.session
	if s.state != sessionClosing || ev.Gen != s.gen {
		d.history.counts.Stale++
		return
	}
	s.state = sessionNone
	switch {
	case d.reset.outcome == reset.OutcomeDone, otherInstance(s.index, d.list.id.Index):
		s.hold = holdFresh
	case d.reset.outcome == reset.OutcomeHeld: // it cannot be reset now, so it is opened as it is
		s.hold = holdFree
	case s.abandoned:
		s.hold = holdHeld
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
		d.suspension.cancelled, d.early = false, ReasonNone
	}
}

// opened handles the result of an Open. A session that is no longer wanted is closed.
func (d *DeviceLadder) opened(ev Opened) {
	if d.session.state != sessionOpening || ev.Op != d.session.op {
		d.history.counts.Stale++
		return
	}
	if ev.Class != ClassSuccess {
		d.notOpened(ev.Class)
		return
	}
	d.session.state, d.session.hold, d.session.patience = sessionOpen, holdHeld, deadline{}
	d.agree(reset.Event{Kind: reset.Opened})
	wanted := d.session.wanted(d.state, d.op.id)
	if wanted {
		d.reset.drop = drop{}
	}
	if !d.list.born {
		d.list.opened(ev.Identity)
		d.session.index = d.list.id.Index
	}
	switch {
	case !wanted:
		d.out = d.session.close(d.why, false, d.out)
	case d.suspension.on:
		d.apply(deviceCauseSuspend, ReasonSuspended)
	case !d.list.has(d.session.index):
		d.apply(deviceCauseRemoved, ReasonRemoved)
	default:
		d.apply(deviceCauseOpened, d.why)
	}
}

// notOpened handles an opening that failed, or was abandoned. One that failed because of the
// device is a failure of the device like any other, and a reset follows if there are means of
// one. An error of an instance that was removed in the meantime says nothing about the next one.
func (d *DeviceLadder) notOpened(c Class) {
	s := &d.session
	broken := c.NeedsReset() && !d.cfg.NoReset && d.list.has(s.index)
	s.state, s.patience = sessionNone, deadline{}
	if broken {
		s.hold = holdHeld
	}
	switch {
	case !s.wanted(d.state, d.op.id):
	case d.suspension.on:
		d.apply(deviceCauseUnwanted, ReasonSuspended)
	case d.state == DeviceStarting && d.suspension.cancelled: // and resumed since
		d.openFirst()
	case broken && d.list.identify():
		d.apply(deviceCauseFault, classes[c].reason)
	default:
		why := ReasonVerbFailed
		if c == ClassRefused {
			why = ReasonRefused
		}
		d.wait.pause = BackOff(d.wait.pause, retryFirst, RetryEvery)
		d.apply(deviceCauseFailed, why)
	}
}
