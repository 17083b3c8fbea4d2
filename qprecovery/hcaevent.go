package qprecovery

import "time"

// HCAEvent is an input of [HCALadder.Step]: [Fault], [Checked], [Asked], [Tick] and
// those below. The triggers of R25 come as Fault, Checked, Asked, Listed and Command.
type HCAEvent interface{ hcaEvent() }

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
// to be opened before [ResetOver]. It is answered by [Released].
type ResetPending struct{ ID uint64 }

// ResetOver says that a reset has ended, and how.
type ResetOver struct {
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

func (Fault) hcaEvent()        {}
func (Checked) hcaEvent()      {}
func (Asked) hcaEvent()        {}
func (Listed) hcaEvent()       {}
func (Opened) hcaEvent()       {}
func (Closed) hcaEvent()       {}
func (GraceOver) hcaEvent()    {}
func (ResetPending) hcaEvent() {}
func (ResetOver) hcaEvent()    {}
func (Command) hcaEvent()      {}
func (Tick) hcaEvent()         {}

// HCAAction is an output of [HCALadder.Step], to be done in the order given: [Open],
// [Refresh], [Check], [RequestReset], [ReportForeign], [GiveUp] and those below.
type HCAAction interface{ hcaAction() }

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

// Released tells the coordinator that this process holds nothing of the device.
type Released struct{ ID uint64 }

// Paused reports that a device whose resets do not last stays closed for a while.
type Paused struct{ For time.Duration }

// Entered reports that a recovery entered a rung.
type Entered struct {
	Rung   Rung
	Reason Reason
}

// Ended reports that a recovery ended in health.
type Ended struct{ Record }

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

func (Open) hcaAction()          {}
func (CancelOpen) hcaAction()    {}
func (Close) hcaAction()         {}
func (Abandon) hcaAction()       {}
func (RequestReset) hcaAction()  {}
func (Released) hcaAction()      {}
func (Refresh) hcaAction()       {}
func (Check) hcaAction()         {}
func (Paused) hcaAction()        {}
func (GiveUp) hcaAction()        {}
func (ReportForeign) hcaAction() {}
func (Entered) hcaAction()       {}
func (Ended) hcaAction()         {}
func (Answer) hcaAction()        {}
