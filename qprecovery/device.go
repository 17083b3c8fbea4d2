package qprecovery

import (
	"cmp"
	"time"
)

// Defaults and timers of a device's machine, as is usual in the field.
const (
	DefaultGiveUpAfter = 10 * time.Minute // R23
	DefaultGrace       = time.Minute      // R14: for users to release the device
	// defaultResetLimit bounds the reset of a device, from the moment at which every
	// user is ready.
	defaultResetLimit = 30 * time.Second
	// startPause is the first pause between two tries to open a device that was never
	// open, and StartPauseMost the longest.
	startPause     = time.Second
	StartPauseMost = 8 * time.Second
	// resetSettle is how long after a reset the list of devices may show the removal and
	// the return of the instance that the reset brought about.
	resetSettle = 2 * time.Second
	// dropMargin is how long closing may take besides the grace period and the reset.
	dropMargin = 10 * time.Second
	// openLimit bounds opening: a context, a PD and the tables of the ports.
	openLimit = 10 * time.Second
	// retryEvery is the time between two tries, or two readings of the list.
	retryEvery = 10 * time.Second
	// resetPauseFirst and resetPauseMost bound the back-off of a device that
	// fails again and again although each reset succeeds.
	resetPauseFirst = 10 * time.Second
	resetPauseMost  = 5 * time.Minute
	// checkEvery is the time between the answer to a Check and the next one (R8).
	checkEvery = 2 * time.Second
)

// DeviceConfig of a [DeviceLadder].
type DeviceConfig struct {
	GiveUpAfter  time.Duration // 0: DefaultGiveUpAfter
	Grace        time.Duration // 0: DefaultGrace
	ResetLimit   time.Duration // of the coordinator; 0: defaultResetLimit
	AllowForeign bool          // use another device when it comes
	Lists        bool          // lists come, and a Refresh is answered; else the device counts as listed
}

// hold says what this process holds of the device. It is the one fact that decides
// whether the device may be opened.
type hold uint8

const (
	// holdHeld: a context of ours may be open on the hardware, a zombie's included, or
	// the device failed and its reset failed as well. It is reset before it is opened.
	holdHeld hold = iota
	// holdFree: nothing of ours is open.
	holdFree
	// holdFresh: and since something was, the device was reset or came as another instance.
	holdFresh
)

// wait is the time of the wait rung, and the last pause before an opening.
type wait struct {
	until    time.Time
	since    time.Time // the device is not tried
	extended bool      // this process was stopped when it ended
	pause    time.Duration
}

// DeviceLadder is the machine of one device: it decides when it is opened, closed, reset,
// waited for and given up. It belongs to one goroutine. [DeviceState] says what each state
// may do, deviceRows is its table.
type DeviceLadder struct {
	cfg  DeviceConfig
	now  time.Time // of the Step under way
	out  []DeviceAction
	born bool // it was open once

	state DeviceState
	rung  Rung
	why   Reason // why the state was entered

	op       operation
	gen      uint32    // of the session opened last, or being opened
	check    time.Time // when a healthy device is checked next; zero: a Check is unanswered
	patience time.Time // when the users of a session that closes are abandoned
	early    Reason    // of a fault of the device that is being opened
	wait     wait
	owed     time.Duration // the pause that is due before the next opening

	id      Identity
	hold    hold
	session session
	reset   coordination
	list    listing

	suspended bool
	suspends  []uint64 // DoSuspend commands that are not answered yet
	cancelled bool     // the first opening was, for a suspension

	budget  budget
	history history
}

// NewDeviceLadder returns the machine of a device that was never open. It is opened when
// the first list comes; without lists at the first Step.
func NewDeviceLadder(now time.Time, cfg DeviceConfig) *DeviceLadder {
	cfg.GiveUpAfter = cmp.Or(cfg.GiveUpAfter, DefaultGiveUpAfter)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	cfg.ResetLimit = cmp.Or(cfg.ResetLimit, defaultResetLimit)
	d := &DeviceLadder{cfg: cfg, gen: 1, hold: holdFree}
	if !cfg.Lists {
		d.op.due = now
	}
	return d
}

// State returns the state.
func (d *DeviceLadder) State() DeviceState { return d.state }

// Rung returns the rung of the recovery under way; RungNone: there is none.
func (d *DeviceLadder) Rung() Rung { return d.rung }

// Reason returns why the state was entered.
func (d *DeviceLadder) Reason() Reason { return d.why }

// Suspended reports whether the device is to be closed, between DoSuspend and DoResume.
func (d *DeviceLadder) Suspended() bool { return d.suspended }

// Listed reports whether the device is in the list, as far as that is known.
func (d *DeviceLadder) Listed() bool { return d.born && d.cfg.Lists && !d.list.absent }

// Devices returns the list of devices as it came last. It is read-only.
func (d *DeviceLadder) Devices() []Identity { return d.list.devices }

// Identity returns that of the device; false before it was open once.
func (d *DeviceLadder) Identity() (id Identity, ok bool) { return d.id, d.born }

// History returns the last recoveries, oldest first, the one under way last.
func (d *DeviceLadder) History() []Record { return d.history.list() }

// Counts returns what happened since the start.
func (d *DeviceLadder) Counts() Counts { return d.history.counts }

// NextTry returns when a pause ends, or the device is tried again; false in any other
// state.
func (d *DeviceLadder) NextTry() (at time.Time, ok bool) {
	if d.state != DevicePausing && d.state != DeviceWaiting {
		return time.Time{}, false
	}
	return d.op.due, true
}

// GivesUp returns when the wait for the device ends; false while it is not waited for.
func (d *DeviceLadder) GivesUp() (at time.Time, ok bool) { return d.wait.until, !d.wait.until.IsZero() }

// NextDeadline returns when Step wants to be called without an event.
func (d *DeviceLadder) NextDeadline() (at time.Time, ok bool) {
	at = d.op.due
	switch d.state { //nolint:exhaustive // the others have no second timer
	case DeviceHealthy:
		at = Earlier(at, d.check)
	case DeviceDropping:
		at = Earlier(at, d.patience)
	case DeviceWaiting:
		at = Earlier(at, d.wait.until)
	}
	return at, !at.IsZero()
}

// Step takes an event at the time now, which does not run backwards, and appends the
// actions that it leads to to out. The event comes before the deadlines that are due.
func (d *DeviceLadder) Step(now time.Time, ev DeviceEvent, out []DeviceAction) []DeviceAction {
	d.now, d.out = now, out
	d.take(ev)
	d.expire()
	d.advance()
	d.endWait()
	out, d.out = d.out, nil
	return out
}

func (d *DeviceLadder) emit(a DeviceAction) { d.out = append(d.out, a) }

func (d *DeviceLadder) take(ev DeviceEvent) {
	switch ev := ev.(type) {
	case Fault:
		d.fault(ev)
	case Checked:
		d.checked(ev)
	case Asked:
		d.asked(ev)
	case Listed:
		d.listed(ev)
	case Opened:
		d.opened(ev)
	case Closed:
		d.closed(ev)
	case GraceOver:
		d.abandon()
	case ResetPending:
		d.reset.pending, d.reset.released = ev.ID, false
	case ResetEnded:
		d.resetEnded(ev)
	case Command:
		d.command(ev)
	}
}

// advance does what the changed facts allow: it ends a drop, takes part in a reset that
// others requested, reports to the coordinator that nothing is held, begins an opening, and
// answers the commands that wait for a suspension.
func (d *DeviceLadder) advance() {
	if why, over := d.dropped(); over {
		d.endDrop(why)
	}
	if d.state == DeviceHealthy && d.reset.pending != 0 {
		d.apply(deviceCauseFault, ReasonDeviceReset)
	}
	idle := d.session.state == sessionNone
	if d.reset.pending != 0 && !d.reset.released && idle {
		d.reset.released = true
		d.emit(Released{d.reset.pending})
	}
	if (d.state == DeviceOpening || d.state == DeviceStarting) && idle && d.reset.pending == 0 {
		d.open()
	}
	switch {
	case d.state == DeviceGivenUp:
		d.answerSuspends(ResultGivenUp)
	case !d.suspended:
		d.answerSuspends(ResultResumed)
	case d.state == DeviceSuspended:
		d.answerSuspends(ResultDone)
	}
}

// fault takes a classified error. One that is not the device's is absorbed; one of a
// device that is being opened waits until it is open.
func (d *DeviceLadder) fault(ev Fault) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case ev.Gen != d.gen:
		d.history.counts.Stale++
	case c.cause != causeDevice:
		d.history.counts.Absorbed++
	case d.state == DeviceOpening:
		d.early = c.reason
	default:
		if d.state == DeviceHealthy {
			d.history.beginRecord(d.now, ev.Since, c.reason)
		}
		d.apply(deviceCauseFault, c.reason)
	}
}

// checked takes the result of a Check, and plans the next one while the device is
// healthy. An error that is not the device's changes nothing.
func (d *DeviceLadder) checked(ev Checked) {
	switch {
	case ev.Gen != d.gen:
		d.history.counts.Stale++
	case ev.Class.OfDevice():
		d.fault(Fault{Gen: ev.Gen, Class: ev.Class})
	case d.state == DeviceHealthy:
		d.check = d.now.Add(checkEvery)
	}
}

func (d *DeviceLadder) asked(ev Asked) {
	if ev.Gen != d.gen {
		d.history.counts.Stale++
		return
	}
	d.apply(deviceCauseFault, ev.Reason)
}

// verdict says what a device that is closed allows next.
func (d *DeviceLadder) verdict() deviceCause {
	switch {
	case d.suspended:
		return deviceCauseUnwanted
	case !d.born:
		return deviceCauseUnborn
	case d.list.absent:
		return deviceCauseAbsent
	case d.hold == holdHeld:
		return deviceCauseHeld
	case d.owed > 0:
		return deviceCauseSpent
	default:
		return deviceCauseFree
	}
}
