package qprecovery

import (
	"slices"
	"time"
)

// session is the only session, if there is one. It exists from its Open on.
type session struct {
	state     sessionState
	gen       uint32
	op        uint64 // of its Open
	index     uint32 // of its instance
	abandoned bool
}

type sessionState uint8

const (
	sessionNone    sessionState = iota
	sessionOpening              // an Open is unanswered
	sessionOpen
	sessionClosing // a Close is unanswered
)

// open begins the opening that the state calls for, unless it has begun already.
func (d *DeviceLadder) open() {
	if d.session.op == d.op.id {
		return
	}
	d.session = session{state: sessionOpening, gen: d.gen, op: d.op.id, index: d.id.Index}
	d.emit(Open{d.op.id, d.gen})
}

// openFirst tries to open a device that was never open, unless that is under way.
func (d *DeviceLadder) openFirst() {
	if d.session.state == sessionNone {
		d.op.id++
		d.op.due = time.Time{}
		d.cancelled = false
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
	d.session.state, d.hold = sessionOpen, holdHeld
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
		d.close(ReasonVerbTimeout, false)
	case d.suspended:
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
	case d.suspended:
		d.apply(deviceCauseUnwanted, ReasonSuspended)
	case d.state == DeviceStarting && d.cancelled: // and resumed since
		d.openFirst()
	default:
		if d.state == DeviceStarting {
			d.wait.pause = BackOff(d.wait.pause, startPause, StartPauseMost)
		}
		d.apply(deviceCauseFailed, why)
	}
}

// close asks the users to release the session, if there is one. If the device does not
// work, the session is failed first, so that no user waits for it.
func (d *DeviceLadder) close(why Reason, fail bool) {
	if d.session.state == sessionOpen {
		d.session.state = sessionClosing
	}
	d.emit(Close{Gen: d.session.gen, Reason: why, Fail: fail})
}

func (d *DeviceLadder) closed(ev Closed) {
	if d.session.state != sessionClosing || ev.Gen != d.session.gen {
		d.history.counts.Stale++
		return
	}
	d.session.state = sessionNone
	switch {
	case d.reset.outcome == ResetDone:
		d.hold = holdFresh
	case d.session.abandoned:
		d.hold = holdHeld
	case otherInstance(d.session.index, d.id.Index):
		d.hold = holdFresh
	case d.state != DeviceDropping && d.reset.wanted: // the drop has failed
		d.hold = holdHeld
	default:
		d.hold = holdFree
	}
}

// abandon stops waiting for users that have not released the session.
func (d *DeviceLadder) abandon() {
	d.patience = time.Time{}
	if d.session.state == sessionClosing && !d.session.abandoned {
		d.session.abandoned = true
		d.emit(Abandon{d.session.gen})
	}
}
