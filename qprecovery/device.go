package qprecovery

import (
	"cmp"
	"time"

	"ipoibd/qprecovery/reset"
)

// Defaults and timers of a device's machine; the values are common practice.
const (
	DefaultGiveUpAfter = 10 * time.Minute   // R23
	DefaultGrace       = reset.DefaultGrace // R14: for users to release the device
	// resetSettle is how long after a reset the list of devices may still show that the
	// reset removed the instance and added it again.
	resetSettle = 2 * time.Second
	// dropMargin is how long closing may take in addition to the grace period and the reset.
	dropMargin = 10 * time.Second
	// openLimit bounds an opening whose verbs have limits of their own (hca/guard): open_device
	// 10 s, and query_port up to a minute while the device answers other verbs.
	openLimit = 2 * time.Minute
	// RetryEvery is the time between two resets of a device that could not be reset, or two
	// readings of the list. It is also the longest pause after an opening that has failed.
	RetryEvery = 10 * time.Second
	// retryFirst is the first such pause. The device of a driver that is still being initialized
	// opens within a second, and a device that udev has just renamed opens at once.
	retryFirst = 100 * time.Millisecond
	// waitMore is by how long the wait is extended if this process was stopped when it ended:
	// enough to read the events that queued up meanwhile.
	waitMore = time.Second
	// resetPauseFirst and resetPauseMost bound the back-off of a device that
	// keeps failing although each reset succeeds.
	resetPauseFirst = 10 * time.Second
	resetPauseMost  = 5 * time.Minute
	// deadFirst is how long the driver of a device that is present but dead may take to bring
	// it back before the device is reset. mlx5 waits a minute for the function to answer.
	deadFirst = time.Minute
	// checkEvery is the time between the answer to a Check and the next one (R8). After a
	// check that failed it doubles from checkFirst, because a port may have changed (R24).
	checkEvery = 2 * time.Second
	checkFirst = 100 * time.Millisecond
)

// DeviceConfig of a [DeviceLadder].
type DeviceConfig struct {
	GiveUpAfter  time.Duration // 0: DefaultGiveUpAfter
	Grace        time.Duration // 0: DefaultGrace
	AllowForeign bool          // use another device if it appears
	// NoReset: there are no means of a reset, so the device is only opened again. A removal is then never
	// an effect of a reset, however soon it follows one.
	NoReset bool
	// Join opens the locks by which the processes that use the device agree about its resets. It does not
	// block, and is called again after an error. devices is the list, since the locks are named after the
	// device.
	Join func(devices []Identity) (Resets, error)
}

// DeviceLadder is the machine of one device: it decides when to open, close, reset, wait
// for and give up the device. It must be used by one goroutine. [DeviceState] explains what
// each state may do; deviceRows is the transition table.
type DeviceLadder struct {
	cfg DeviceConfig
	now time.Time // of the current Step
	out []DeviceAction

	state DeviceState
	why   Reason    // why the state was entered
	since time.Time // when
	rung  Rung

	op    operation
	gen   uint32 // of the session opened last, or being opened
	check checks
	early Reason // of a fault of the device that is being opened
	wait  wait

	session    session
	reset      coordination
	list       listing
	suspension suspension
	budget     resetBudget
	history    history
}

// checks plans the checks of a healthy device.
type checks struct {
	due   time.Time     // of the next one; zero: one is unanswered
	again bool          // a port has changed since that one was requested
	pause time.Duration // after the latest one, which failed; 0: it succeeded
}

// answered plans the next check after one that has not found a failure of the device. It is soon if
// the check failed for another reason.
func (c *checks) answered(now time.Time, succeeded bool) {
	wait := checkEvery
	if !succeeded {
		wait = BackOff(c.pause, checkFirst, checkEvery)
		c.pause = wait
	} else {
		c.pause = 0
	}
	if c.again {
		wait = 0
	}
	c.again, c.due = false, now.Add(wait)
}

// soon plans a check for now, or, if one is unanswered, right after its answer.
func (c *checks) soon(now time.Time) {
	if c.again = c.due.IsZero(); !c.again {
		c.due = now
	}
}

// wait is the state of the wait rung. It is extended once, by waitMore, if this process was
// stopped when it ended, because the event of a return may still be queued.
type wait struct {
	deadline
	since time.Time     // the device has not been tried
	pause time.Duration // after the latest opening, which failed; 0: it succeeded, or the device has changed since
}

// NewDeviceLadder returns the machine of a device that was never open. It opens the device
// when the first list comes.
func NewDeviceLadder(now time.Time, cfg DeviceConfig) *DeviceLadder {
	cfg.GiveUpAfter = cmp.Or(cfg.GiveUpAfter, DefaultGiveUpAfter)
	cfg.Grace = cmp.Or(cfg.Grace, DefaultGrace)
	return &DeviceLadder{cfg: cfg, since: now, gen: 1, session: session{hold: holdFree}}
}

// State returns the state.
func (d *DeviceLadder) State() DeviceState { return d.state }

// Suspended reports whether the device was suspended and not resumed since.
func (d *DeviceLadder) Suspended() bool { return d.suspension.on }

// DeviceStatus is the state of a [DeviceLadder] as shown to an operator.
type DeviceStatus struct {
	State     DeviceState
	Reason    Reason    // why the state was entered
	Since     time.Time // when it was entered
	Rung      Rung      // of the current recovery, or RungNone
	Identity  Identity  // zero: it was never open, nor in need of a reset
	Listed    bool      // the device is in the list; false if Identity is zero
	Dead      bool      // it is not in the list because it is dead (Identity.Dead)
	Suspended bool      // suspended and not resumed since
	NextTry   time.Time // when a pause ends, or the device is tried again; zero: none is planned
	GivesUp   time.Time // when the wait for the device ends; zero: not waiting
	History   []Record  // the latest recoveries, oldest first, the current one last; read-only
	Counts    Counts    // since the start
}

// Status returns the current status.
func (d *DeviceLadder) Status() DeviceStatus {
	s := DeviceStatus{
		State: d.state, Reason: d.why, Since: d.since, Rung: d.rung, Identity: d.list.id,
		Listed: d.list.born && !d.list.absent, Dead: d.list.absent && d.list.dead.is,
		Suspended: d.suspension.on, GivesUp: d.wait.due,
		History: d.history.list(), Counts: d.history.counts,
	}
	if d.state == DevicePausing || d.state == DeviceWaiting {
		s.NextTry = d.op.due
	}
	return s
}

// NextDeadline returns when Step must be called with a Tick if there is no earlier event.
func (d *DeviceLadder) NextDeadline() (at time.Time, ok bool) {
	at = Earlier(Earlier(d.op.due, d.session.patience.due), d.reset.due())
	switch d.state { //nolint:exhaustive // the others have no further timer
	case DeviceHealthy:
		at = Earlier(at, d.check.due)
	case DeviceWaiting:
		at = Earlier(at, d.wait.due)
	}
	return at, !at.IsZero()
}

// Step applies an event at the time now, which must not decrease, and appends the resulting
// actions to out. It applies the event before the deadlines that are due.
func (d *DeviceLadder) Step(now time.Time, ev DeviceEvent, out []DeviceAction) []DeviceAction {
	d.now, d.out = now, out
	d.take(ev)
	d.expire()
	for d.reset.news = true; d.reset.news; {
		d.reset.news = false
		d.advance()
	}
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
		switch {
		case ev.Gen != d.gen, ev.Class.OfDevice():
			d.fault(Fault{Gen: ev.Gen, Class: ev.Class})
		case d.state == DeviceHealthy:
			d.check.answered(d.now, ev.Class == ClassSuccess)
		}
	case Asked:
		if ev.Gen != d.gen {
			d.history.counts.Stale++
			break
		}
		d.fail(d.now, ev.Reason)
	case Listed:
		d.listed(ev)
	case Opened:
		d.opened(ev)
	case Closed:
		d.closed(ev)
	case ResetEvent:
		d.agree(ev.Event)
	case Command:
		d.command(ev)
	}
}

// advance acts on the changed facts: it ends a drop, joins a reset that others requested,
// releases the device for a reset, begins an opening, and answers commands that wait for a
// suspension.
func (d *DeviceLadder) advance() {
	if d.state == DeviceDropping {
		if bad, over := d.reset.over(&d.session, d.list.op != 0, d.why); over {
			d.endDrop(bad)
		}
	}
	if d.state == DeviceHealthy && d.reset.pending {
		d.apply(deviceCauseOrdered, ReasonDeviceReset)
	}
	if d.session.state == sessionNone {
		opens := d.state.opens() && d.session.op != d.op.id
		if opens {
			_ = d.join() // without locks, the opening fails
		}
		if d.reset.pending && !d.reset.released {
			d.reset.released = true
			d.agree(reset.Event{Kind: reset.Released})
		}
		if opens && !d.reset.pending {
			d.session.begin(d.now, d.op.id, d.gen, d.list.id.Index)
			d.op.deadline = deadline{} // the session has its own
			open := Open{Op: d.op.id, Gen: d.gen}
			if !d.cfg.AllowForeign {
				open.Want = d.list.id
			}
			d.emit(open)
		}
	}
	switch {
	case d.state == DeviceGivenUp:
		d.out = d.suspension.answer(ResultGivenUp, d.out)
	case !d.suspension.on:
		d.out = d.suspension.answer(ResultResumed, d.out)
	case d.state == DeviceSuspended:
		d.out = d.suspension.answer(ResultDone, d.out)
	}
}

// fault handles a classified error or event. It checks the device at once after an event of a
// port, and absorbs what is not the device's.
func (d *DeviceLadder) fault(ev Fault) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case ev.Gen != d.gen:
		d.history.counts.Stale++
	case ev.Class == ClassPort && d.state == DeviceHealthy:
		d.check.soon(d.now)
	case c.cause != causeDevice:
		d.history.counts.Absorbed++
	default:
		d.fail(ev.Since, c.reason)
	}
}

// fail handles a failure of the device. One during an opening is kept until the device is open.
func (d *DeviceLadder) fail(since time.Time, why Reason) {
	switch d.state {
	case DeviceHealthy:
		d.history.beginRecord(d.now, since, why)
		d.apply(deviceCauseFault, why)
	case DeviceStarting, DeviceOpening:
		d.early = why
	default: // it is not open
		d.history.counts.Absorbed++
	}
}

// verdict returns the cause that decides what follows once the device is closed.
func (d *DeviceLadder) verdict() deviceCause {
	switch {
	case d.suspension.on:
		return deviceCauseUnwanted
	case !d.list.born:
		return deviceCauseUnborn
	case d.list.absent:
		return deviceCauseAbsent
	case d.session.hold == holdHeld:
		return deviceCauseHeld
	case d.budget.owed > 0:
		return deviceCauseSpent
	default:
		return deviceCauseFree
	}
}
