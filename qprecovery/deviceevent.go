package qprecovery

import "ipoibd/qprecovery/reset"

import "time"

// DeviceEvent is an input of [DeviceLadder.Step]: [Fault], [Tick] and the types below. The
// triggers of R25 arrive as Fault, Checked, Asked, Listed and Command.
type DeviceEvent interface{ deviceEvent() }

// Checked is the result of a [Check] of the device of generation Gen.
type Checked struct {
	Gen   uint32
	Class Class // of the verb's error, else ClassSuccess
}

// Asked reports that an interface requests a reset of the device ([RequestReset]). Gen is
// the generation of its session: a request about an earlier session is ignored.
type Asked struct {
	Reason Reason
	Gen    uint32
}

// Listed is the list of devices, sent after each change and in answer to a [Refresh]. Op is
// the Op of the Refresh, or 0. The machine keeps a reference to Devices.
type Listed struct {
	Op      uint64
	Devices []Identity
}

// Opened is the result of an [Open] that was not abandoned, however late. With ClassSuccess a
// session is open, and the machine is responsible for closing it.
type Opened struct {
	Op       uint64
	Class    Class
	Identity Identity // of the opened device; its index may be unknown
}

// Closed reports that the session of generation Gen is closed, in answer to [Close].
type Closed struct{ Gen uint32 }

// ResetEvent is an event of the agreement about resets: [reset.Look] after each change of the record
// that the processes share, and [reset.Done] in answer to a [reset.Reset].
type ResetEvent struct{ reset.Event }

// Command is a request of the operator, or of the system before and after sleep. Each is
// answered by one [Answer] with its ID.
type Command struct {
	ID uint64
	Do Do
}

// Do is the kind of a [Command].
type Do uint8

// Commands.
const (
	DoReset   Do = iota // reset the device; if it is absent, look for it at once
	DoRecover           // retry a device that was given up, at once and then while waiting
	DoSuspend           // close the device (R26); answered when it is closed
	DoResume            // undo DoSuspend
	numDo
)

func (Fault) deviceEvent()      {}
func (Checked) deviceEvent()    {}
func (Asked) deviceEvent()      {}
func (Listed) deviceEvent()     {}
func (Opened) deviceEvent()     {}
func (Closed) deviceEvent()     {}
func (ResetEvent) deviceEvent() {}
func (Command) deviceEvent()    {}
func (Tick) deviceEvent()       {}

// DeviceAction is an output of [DeviceLadder.Step]: [Entered], [Ended] and the types below.
// Actions must be executed in the given sequence.
type DeviceAction interface{ deviceAction() }

// Open opens the device. The session has generation Gen. If the device that opens is not
// Want, it is closed again (R22); the zero identity accepts any device.
type Open struct {
	Op   uint64
	Gen  uint32
	Want Identity
}

// Refresh reads the list of devices again. The answer is [Listed] with this Op (R24).
type Refresh struct{ Op uint64 }

// Check queries the ports of the session of generation Gen, and publishes the answer. Then [Checked]
// reports the result.
type Check struct{ Gen uint32 }

// GiveUp reports that the wait for the device has ended without success.
type GiveUp struct{ Reason Reason }

// ReportForeign reports that another device appeared and is not used.
type ReportForeign struct{ Identity Identity }

// CancelOpen cancels an [Open], which is still answered.
type CancelOpen struct{ Op uint64 }

// Close ends the use of the session of generation Gen: it accepts no new users, is closed
// once its users have released it, and then [Closed] reports that. The action may be
// repeated with another reason, even when nothing is open any more.
type Close struct {
	Gen    uint32
	Reason Reason
	Fail   bool // the device does not work: fail the session first, so that no user waits for it
}

// Abandon closes the session of generation Gen although its users have not released it;
// their handles become zombies (R19). If the session is still being opened, its [Open] is not
// answered any more, and the session is closed if it opens nevertheless.
type Abandon struct{ Gen uint32 }

// ResetAction is an action of the agreement about resets. A [reset.Reset] resets the device, and a
// [reset.Ended] ends that; the others are only for messages, because the machine has acted on them already.
type ResetAction struct{ reset.Action }

// Paused reports that a device that keeps failing after its resets stays closed for a while.
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
	ResultDone         Result = iota // accepted; for DoSuspend: the device is closed
	ResultNotOpen                    // it was never open and is absent, so not reset; it is retried at once
	ResultOpen                       // it is open, so there is nothing to recover
	ResultUnderWay                   // a recovery is under way and already does what was requested
	ResultSuspended                  // it is suspended
	ResultNotSuspended               // it is not suspended
	ResultResumed                    // it was resumed before it was closed
	ResultGivenUp                    // it was given up, so there is nothing to suspend
	numResult
)

func (Open) deviceAction()          {}
func (CancelOpen) deviceAction()    {}
func (Close) deviceAction()         {}
func (Abandon) deviceAction()       {}
func (ResetAction) deviceAction()   {}
func (Refresh) deviceAction()       {}
func (Check) deviceAction()         {}
func (Paused) deviceAction()        {}
func (GiveUp) deviceAction()        {}
func (ReportForeign) deviceAction() {}
func (Entered) deviceAction()       {}
func (Ended) deviceAction()         {}
func (Answer) deviceAction()        {}
