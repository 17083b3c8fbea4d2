package qprecovery

import "time"

// Defaults and timers of a device's ladder, as the field has them.
const (
	DefaultGiveUpAfter = 10 * time.Minute // R23
	DefaultGrace       = time.Minute      // R14: for clients to become ready
	// dropMargin is what closing may take besides the grace.
	dropMargin = 10 * time.Second
	// retryEvery is the time between two tries, or two looks at the list.
	retryEvery = 10 * time.Second
	// resetPauseFirst and resetPauseMost bound the back-off of a device that
	// fails again and again although each reset succeeds.
	resetPauseFirst = 10 * time.Second
	resetPauseMost  = 5 * time.Minute
	// checkEvery is the time between the answer to a Check and the next one (R8).
	checkEvery = 2 * time.Second
)

// DeviceConfig of a device's ladder.
type DeviceConfig struct {
	Identity     Identity      // of the device that is open
	GiveUpAfter  time.Duration // 0: DefaultGiveUpAfter
	Grace        time.Duration // 0: DefaultGrace
	AllowForeign bool          // take another device when it comes
}

// DeviceLadder is the ladder of one device. It belongs to one goroutine.
type DeviceLadder struct {
	cfg     DeviceConfig
	state   DeviceState
	why     Reason
	op      operation
	next    Reason // of a removal (or none) that the operation under way keeps
	early   Reason // of a fault of the device that is being opened
	gen     uint32
	check   time.Time // when a healthy device is checked next; zero: a Check is unanswered
	view    presence
	wait    wait
	budget  budget
	history history
	out     []DeviceAction
}

// presence is what is known of the device.
type presence struct {
	listed    bool // it is in the list
	held      bool // it was not let go
	suspended bool // it is not wanted
	foreign   foreigners
}

// wait is the time of the wait rung, and the last pause before an opening.
type wait struct {
	until    time.Time
	extended bool // this process was stopped when it ended
	pause    time.Duration
}

// NewDeviceLadder returns the ladder of a device that is open, since now, as
// generation 1.
func NewDeviceLadder(now time.Time, cfg DeviceConfig) *DeviceLadder {
	if cfg.GiveUpAfter <= 0 {
		cfg.GiveUpAfter = DefaultGiveUpAfter
	}
	if cfg.Grace <= 0 {
		cfg.Grace = DefaultGrace
	}
	d := &DeviceLadder{cfg: cfg, gen: 1, check: now.Add(checkEvery), view: presence{listed: true, held: true}}
	d.budget.healthy(now)
	return d
}

// State returns the state.
func (d *DeviceLadder) State() DeviceState { return d.state }

// Reason returns why the state was entered.
func (d *DeviceLadder) Reason() Reason { return d.why }

// Suspended reports whether the device is to be closed, between [Suspend] and
// [Resume].
func (d *DeviceLadder) Suspended() bool { return d.view.suspended }

// Gen returns the generation of the device that is or was last open.
func (d *DeviceLadder) Gen() uint32 { return d.gen }

// Identity returns that of the device's instance known last.
func (d *DeviceLadder) Identity() Identity { return d.cfg.Identity }

// History returns the last recoveries, oldest first, the one under way last.
func (d *DeviceLadder) History() []Record { return d.history.list() }

// Counts returns what happened since the start.
func (d *DeviceLadder) Counts() Counts { return d.history.counts }

// NextTry returns when the pause ends, or the device that is waited for is looked
// for again; false in any other state.
func (d *DeviceLadder) NextTry() (at time.Time, ok bool) {
	if d.state != DevicePausing && d.state != DeviceWaiting {
		return time.Time{}, false
	}
	return d.op.due, true
}

// GivesUp returns when the wait for the device ends; false while it is not waited
// for.
func (d *DeviceLadder) GivesUp() (at time.Time, ok bool) { return d.wait.until, !d.wait.until.IsZero() }

// NextDeadline returns when Step wants to be called without an event.
func (d *DeviceLadder) NextDeadline() (at time.Time, ok bool) {
	at = d.op.due
	if d.state == DeviceHealthy {
		at = earlier(at, d.check)
	}
	if d.state == DeviceWaiting {
		at = earlier(at, d.wait.until)
	}
	return at, !at.IsZero()
}

// Step takes an event at the time now, which does not run backwards, and appends
// what is to be done to out. The event comes before the deadlines that are due.
func (d *DeviceLadder) Step(now time.Time, ev DeviceEvent, out []DeviceAction) []DeviceAction {
	d.out = out
	d.take(now, ev)
	d.expire(now)
	out, d.out = d.out, nil
	return out
}

func (d *DeviceLadder) emit(a DeviceAction) { d.out = append(d.out, a) }

func (d *DeviceLadder) take(now time.Time, ev DeviceEvent) {
	switch ev := ev.(type) {
	case Fault:
		d.fault(now, ev)
	case Checked:
		d.checked(now, ev)
	case Asked:
		d.apply(now, deviceCauseFault, ev.Reason)
	case Order:
		d.order(now, ev)
	case Removed:
		d.removed(now, ev)
	case Arrived:
		d.arrived(now, ev.Identity)
	case Recover:
		d.recover(now)
	case Suspend:
		d.suspend(now)
	case Resume:
		d.resume(now)
	case Done:
		d.done(now, ev)
	}
}

// fault takes a classified error of the device. One that is not the device's is
// absorbed.
func (d *DeviceLadder) fault(now time.Time, ev Fault) {
	c := classes[min(ev.Class, ClassIgnored)]
	switch {
	case ev.Gen != d.gen:
		d.history.counts.Stale++
	case c.cause != causeDevice:
		d.history.counts.Absorbed++
	default:
		d.broken(now, ev.Since, c.reason)
	}
}

// checked takes the result of a Check. Another one follows while the device is
// healthy; a failure that is not the device's is no reason to stop.
func (d *DeviceLadder) checked(now time.Time, ev Checked) {
	switch {
	case ev.Gen != d.gen:
		d.history.counts.Stale++
	case ev.Class.OfDevice():
		d.fault(now, Fault{Gen: ev.Gen, Class: ev.Class})
	case d.state == DeviceHealthy:
		d.check = now.Add(checkEvery)
	}
}

// broken has the device reset; one that is only being opened, once it is open.
func (d *DeviceLadder) broken(now, since time.Time, why Reason) {
	if d.opening() {
		d.early = why
		return
	}
	if d.state == DeviceHealthy {
		d.history.begin(now, since, why)
	}
	d.apply(now, deviceCauseFault, why)
}

// removed takes the device off the list; that of another instance is stale.
func (d *DeviceLadder) removed(now time.Time, ev Removed) {
	if otherInstance(ev.Index, d.cfg.Identity.Index) {
		d.history.counts.Stale++
		return
	}
	d.view.listed = false
	d.apply(now, deviceCauseRemoved, ReasonRemoved)
}

// arrived looks at a device in the list.
func (d *DeviceLadder) arrived(now time.Time, id Identity) {
	switch {
	case d.cfg.Identity.Same(id):
		d.returned(now, id)
	case d.view.listed || d.state == DeviceHealthy:
		d.history.counts.Absorbed++
	case d.cfg.AllowForeign:
		d.returned(now, id)
	case d.view.foreign.add(id):
		d.emit(ReportForeign{id})
	}
}

// returned takes the device up again. Another instance of one that is open
// means that its removal went unheard. One that was waited for begins anew: that
// the resets of the instance before it did not last says nothing of it.
func (d *DeviceLadder) returned(now time.Time, id Identity) {
	replaced := otherInstance(id.Index, d.cfg.Identity.Index)
	d.cfg.Identity, d.view.listed = id, true
	switch {
	case d.state == DeviceWaiting:
		if replaced {
			d.budget.forgive(RungDevice)
		}
		d.try(now, ReasonDeviceBack)
	case d.state == DeviceHealthy && replaced:
		d.apply(now, deviceCauseFault, ReasonReplaced)
	}
}

// Takes reports whether an [Order] or a [Recover] would change anything now; if not,
// the recovery under way does as much already, or there is nothing to recover.
func (d *DeviceLadder) Takes(ev DeviceEvent) bool {
	if o, ok := ev.(Order); ok && (o.Rung != RungDevice || d.state == DeviceHealthy) {
		return o.Rung == RungDevice
	}
	return d.state == DeviceWaiting || deviceTransitions[d.state][deviceCauseRecover] != nil
}

// order resets the device, or hastens what is under way.
func (d *DeviceLadder) order(now time.Time, ev Order) {
	switch {
	case ev.Rung != RungDevice:
	case d.state == DeviceHealthy:
		d.apply(now, deviceCauseFault, ReasonOperator)
	default:
		d.recover(now)
	}
}

// recover starts the wait again, with a try at once.
func (d *DeviceLadder) recover(now time.Time) {
	if d.state == DeviceWaiting {
		d.try(now, ReasonOperator)
		return
	}
	d.apply(now, deviceCauseRecover, ReasonOperator)
}

// suspend closes the device; one that an operation is under way for, after that.
func (d *DeviceLadder) suspend(now time.Time) {
	d.view.suspended = d.state != DeviceGivenUp
	if !d.state.operating() {
		d.apply(now, deviceCauseSuspend, ReasonSuspended)
	}
}

// resume opens the device again, or waits until it can be opened.
func (d *DeviceLadder) resume(now time.Time) {
	d.view.suspended = false
	switch {
	case d.state != DeviceSuspended:
	case d.view.listed && !d.view.held:
		d.apply(now, deviceCauseResume, ReasonResumed)
	default:
		d.apply(now, deviceCauseAway, ReasonResumed)
	}
}

// done takes the result of the operation under way; any other is stale. A drop
// has let the device go, and yet there was no reset, if it is ClassTransient, where
// others did not (R16), or ClassDeviceError, where the reset failed.
func (d *DeviceLadder) done(now time.Time, ev Done) {
	if !d.state.operating() || ev.Op != d.op.id {
		d.history.counts.Stale++
		return
	}
	d.view.held = d.holds(ev.Class)
	switch {
	case ev.Class == ClassStuck:
		d.result(now, deviceCauseTimeout)
	case ev.Class == ClassTransient && !d.opening():
		d.result(now, deviceCauseOthers)
	case ev.Class != ClassSuccess:
		d.result(now, deviceCauseFailed)
	case d.state == DeviceDropping && !d.ordered() && d.budget.spent(now, RungDevice):
		d.result(now, deviceCauseSpent)
	default:
		d.result(now, deviceCauseDone)
	}
}

// holds reports whether the device is not free to be opened after a result. One that
// needs its reset is not while that fails; one that worked, and somebody ordered a
// reset of, goes on as it is.
func (d *DeviceLadder) holds(c Class) bool {
	switch {
	case d.opening():
		return c == ClassSuccess
	case c == ClassDeviceError:
		return d.state != DeviceDropping || !d.ordered()
	default:
		return c != ClassSuccess && c != ClassTransient
	}
}

// opening reports whether the operation under way opens the device.
func (d *DeviceLadder) opening() bool { return d.state == DeviceOpening || d.state == DeviceRetrying }
