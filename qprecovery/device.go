package qprecovery

import (
	"cmp"
	"time"
)

// Defaults and timers of a device's machine; the values are common practice.
const (
	DefaultGiveUpAfter = 10 * time.Minute // R23
	DefaultGrace       = time.Minute      // R14: for users to release the device
	// defaultResetLimit bounds the reset of a device, from the moment at which every
	// user is ready.
	defaultResetLimit = 30 * time.Second
	// startPause is the first pause between two attempts to open a device that was never
	// open, and StartPauseMost the longest.
	startPause     = time.Second
	StartPauseMost = 8 * time.Second
	// resetSettle is how long after a reset the list of devices may still show that the
	// reset removed the instance and added it again.
	resetSettle = 2 * time.Second
	// dropMargin is how long closing may take in addition to the grace period and the reset.
	dropMargin = 10 * time.Second
	// openLimit bounds opening: a context, a PD and the tables of the ports.
	openLimit = 10 * time.Second
	// retryEvery is the time between two attempts, or two readings of the list.
	retryEvery = 10 * time.Second
	// resetPauseFirst and resetPauseMost bound the back-off of a device that
	// keeps failing although each reset succeeds.
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
	AllowForeign bool          // use another device if it appears
	Lists        bool          // the shell sends lists and answers Refresh; otherwise the device counts as listed
}

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

// wait is the state of the wait rung, and the last pause before an opening.
type wait struct {
	until    time.Time
	since    time.Time // the device has not been tried
	extended bool      // this process was stopped when the wait ended
	pause    time.Duration
}

// DeviceLadder is the machine of one device: it decides when to open, close, reset, wait
// for and give up the device. It must be used by one goroutine. [DeviceState] explains what
// each state may do; deviceRows is the transition table.
type DeviceLadder struct {
	cfg  DeviceConfig
	now  time.Time // of the current Step
	out  []DeviceAction
	born bool // it has been open

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
	suspends  []uint64 // unanswered DoSuspend commands
	cancelled bool     // the first opening was cancelled by a suspension

	budget  budget
	history history
}

// NewDeviceLadder returns the machine of a device that was never open. It opens the device
// when the first list comes, or without lists at the first Step.
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

// Rung returns the rung of the current recovery, or RungNone.
func (d *DeviceLadder) Rung() Rung { return d.rung }

// Reason returns why the state was entered.
func (d *DeviceLadder) Reason() Reason { return d.why }

// Suspended reports whether the device was suspended and not resumed since.
func (d *DeviceLadder) Suspended() bool { return d.suspended }

// Listed reports whether the device is in the list, as far as that is known.
func (d *DeviceLadder) Listed() bool { return d.born && d.cfg.Lists && !d.list.absent }

// Devices returns the latest list of devices. It is read-only.
func (d *DeviceLadder) Devices() []Identity { return d.list.devices }

// Identity returns the identity of the device, or false if the device was never open.
func (d *DeviceLadder) Identity() (id Identity, ok bool) { return d.id, d.born }

// History returns the latest recoveries, oldest first, including the current one.
func (d *DeviceLadder) History() []Record { return d.history.list() }

// Counts returns the counters since the start.
func (d *DeviceLadder) Counts() Counts { return d.history.counts }

// NextTry returns when a pause ends, or the device is tried again; false in any other
// state.
func (d *DeviceLadder) NextTry() (at time.Time, ok bool) {
	if d.state != DevicePausing && d.state != DeviceWaiting {
		return time.Time{}, false
	}
	return d.op.due, true
}

// GivesUp returns when the wait for the device ends, or false outside a wait.
func (d *DeviceLadder) GivesUp() (at time.Time, ok bool) { return d.wait.until, !d.wait.until.IsZero() }

// NextDeadline returns when Step must be called with a Tick if there is no earlier event.
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

// Step applies an event at the time now, which must not decrease, and appends the resulting
// actions to out. It applies the event before the deadlines that are due.
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

// advance acts on the changed facts: it ends a drop, joins a reset that others requested,
// reports to the coordinator that nothing is held, begins an opening, and answers commands
// that wait for a suspension.
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

// fault handles a classified error. It absorbs errors that are not the device's. An error
// during an opening is kept until the device is open.
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

// checked handles the result of a Check, and plans the next one while the device is
// healthy. It ignores errors that are not the device's.
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

// verdict returns the cause that decides what follows once the device is closed.
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
