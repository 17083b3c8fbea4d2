package qprecovery

import "time"

// DeviceEvent is an input of [DeviceLadder.Step]: [Fault], [Tick] and those below. The
// triggers of R25 come as Fault, Checked, Asked, Listed and Command.
type DeviceEvent interface{ deviceEvent() }

// Checked is the result of a [Check] of the device of generation Gen.
type Checked struct {
	Gen   uint32
	Class Class // of the verb's error, else ClassSuccess
}

// Asked is the request of an interface for a reset of the device ([RequestReset]). Gen is
// that of the session that it used: a request about an earlier one is too late.
type Asked struct {
	Reason Reason
	Gen    uint32
}

// Listed is the list of devices, read after each change or by a [Refresh]: the answer to
// that names its Op, and a list that came by itself has 0. The machine keeps Devices.
type Listed struct {
	Op      uint64
	Devices []Identity
}

// Opened is the result of an [Open], however late it comes. With ClassSuccess a session
// is open, which is the machine's to close.
type Opened struct {
	Op       uint64
	Class    Class
	Identity Identity // of what was opened; its index need not be known
}

// Closed says that the session of generation Gen is closed, as [Close] wants it.
type Closed struct{ Gen uint32 }

// GraceOver says that the coordinator resets the device without the users of this
// process that have not released it yet (R14).
type GraceOver struct{}

// ResetPending says that a reset of the device is pending: it is to be closed, and not
// to be opened before [ResetEnded]. It is answered by [Released].
type ResetPending struct{ ID uint64 }

// ResetEnded says that a reset has ended, and how.
type ResetEnded struct {
	ID      uint64
	Outcome ResetOutcome
}

// ResetOutcome is the outcome of a reset.
type ResetOutcome uint8

// Outcomes.
const (
	ResetUnknown  ResetOutcome = iota
	ResetDone                  // the device was reset
	ResetFailed                // the reset failed
	ResetTimedOut              // it did not end within its limit
	ResetHeld                  // another process did not release the device
	ResetNoDevice              // there is no device to reset: it was removed
	numResetOutcome
)

// Command is an order of the operator, or of the system that goes to sleep. Each is
// answered by one [Answer] with its ID.
type Command struct {
	ID uint64
	Do Do
}

// Do is what a [Command] orders.
type Do uint8

// Commands.
const (
	DoReset   Do = iota // reset the device, or try at once where it is waited for
	DoRecover           // wait again for a device that was given up, with a try at once
	DoSuspend           // close the device (R26); answered when it is closed
	DoResume            // undo DoSuspend
	numDo
)

func (Fault) deviceEvent()        {}
func (Checked) deviceEvent()      {}
func (Asked) deviceEvent()        {}
func (Listed) deviceEvent()       {}
func (Opened) deviceEvent()       {}
func (Closed) deviceEvent()       {}
func (GraceOver) deviceEvent()    {}
func (ResetPending) deviceEvent() {}
func (ResetEnded) deviceEvent()   {}
func (Command) deviceEvent()      {}
func (Tick) deviceEvent()         {}

// DeviceAction is an output of [DeviceLadder.Step], to be done in the order given:
// [RequestReset], [Entered], [Ended] and those below.
type DeviceAction interface{ deviceAction() }

// Open opens the device; what is opened is of generation Gen.
type Open struct {
	Op  uint64
	Gen uint32
}

// Refresh reads the list of devices again, to be answered by [Listed] with this Op (R24).
type Refresh struct{ Op uint64 }

// Check calls a cheap verb of the device of generation Gen, to be answered by
// [Checked].
type Check struct{ Gen uint32 }

// GiveUp reports that the device is not waited for any more.
type GiveUp struct{ Reason Reason }

// ReportForeign reports that another device came, which is not used.
type ReportForeign struct{ Identity Identity }

// CancelOpen ends an [Open] early; it is answered all the same.
type CancelOpen struct{ Op uint64 }

// Close ends the use of the session of generation Gen: no one acquires it any more, and
// when its users have released it, it is closed and [Closed] reports that. It comes
// again with another reason, and also where nothing is open any more.
type Close struct {
	Gen    uint32
	Reason Reason
	Fail   bool // the device does not work: fail the session first, so that no user waits for it
}

// Abandon closes the session of generation Gen without its users, whose handles become
// zombies (R19).
type Abandon struct{ Gen uint32 }

// Released reports to the coordinator that this process holds nothing of the device.
type Released struct{ ID uint64 }

// Paused reports that a device whose resets do not last stays closed for a while.
type Paused struct{ For time.Duration }

// Answer is the answer to a [Command].
type Answer struct {
	ID     uint64
	Result Result
}

// Result of a [Command].
type Result uint8

// Results.
const (
	ResultDone         Result = iota // taken up; of DoSuspend: the device is closed
	ResultNotOpen                    // it was never open; it is tried at once
	ResultOpen                       // it is open, so that there is nothing to recover
	ResultUnderWay                   // a recovery is under way, to which the order adds nothing
	ResultSuspended                  // not while it is suspended
	ResultNotSuspended               // it is not suspended
	ResultResumed                    // it was resumed before it was closed
	ResultGivenUp                    // it was given up, so that there is nothing to suspend
	numResult
)

func (Open) deviceAction()          {}
func (CancelOpen) deviceAction()    {}
func (Close) deviceAction()         {}
func (Abandon) deviceAction()       {}
func (RequestReset) deviceAction()  {}
func (Released) deviceAction()      {}
func (Refresh) deviceAction()       {}
func (Check) deviceAction()         {}
func (Paused) deviceAction()        {}
func (GiveUp) deviceAction()        {}
func (ReportForeign) deviceAction() {}
func (Entered) deviceAction()       {}
func (Ended) deviceAction()         {}
func (Answer) deviceAction()        {}
