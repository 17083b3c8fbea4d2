package qprecovery

import (
	"time"

	"ipoibd/hca"
)

// Event is an input of [Ladder.Step].
//
// A Gen is a generation of the interface's objects: the Gen of [Attached] or of
// the [Run] that created them. An Op identifies one operation and its result.
// An event with an outdated or unknown Gen or Op is counted as stale and
// ignored.
type Event interface{ event() }

// Attached reports that the shell created the interface's objects itself,
// because ib0 came up or its plan changed. Gen is [Ladder.NextGen] or a later
// one.
type Attached struct{ Gen uint32 }

// Stopped reports that the shell is taking, or has taken, the interface's
// objects and the carrier down itself. The current recovery ends, and the shell
// must cancel the current operation.
type Stopped struct{}

// Fault reports a completion, an event or an error of a verb, once classified.
type Fault struct {
	Gen     uint32 // of the object concerned, or of the opened device
	Class   Class
	Request *Request  // of a failed work request; the ladder copies it
	Since   time.Time // when service was last known to work; zero means now
}

// Suspected reports that the freeze detector suspects a freeze, or that the events of completions are
// lost.
type Suspected struct {
	Gen        uint32
	Since      time.Time // as in Fault
	EventsLost bool      // the queue pair works, but only polls find completions
}

// Done is the result of an operation.
type Done struct {
	Op    uint64
	Class Class       // of the first verb that failed, else ClassSuccess
	State hca.QPState // the state found by a Query
	// Frozen is the result of a Prove: no probe was answered, although the port was
	// active and the wire was not full.
	Frozen bool
}

// DeviceDown reports that the device is about to be reset, or is lost.
type DeviceDown struct{}

// DeviceUp reports that the device is back.
type DeviceUp struct{}

// DeviceGaveUp reports that the wait for the device has ended.
type DeviceGaveUp struct{}

// Order is a command of the operator, or with ReasonPortChanged of the shell: RungResetQP or RungRebuildCQ.
// Budgets do not limit it, it ends a back-off, and it does not count as a use of the rung.
// Other rungs are ignored; a command to reset the device is for its own ladder.
type Order struct {
	Rung   Rung
	Reason Reason // ReasonNone: ReasonOperator
}

// Tick has no effect but the passing of time; see NextDeadline.
type Tick struct{}

func (Attached) event()     {}
func (Stopped) event()      {}
func (Fault) event()        {}
func (Suspected) event()    {}
func (Done) event()         {}
func (DeviceDown) event()   {}
func (DeviceUp) event()     {}
func (DeviceGaveUp) event() {}
func (Order) event()        {}
func (Tick) event()         {}

// Action is an output of [Ladder.Step]. Actions must be executed in the given sequence.
// Those with an Op are operations: each is answered by one [Done], however late.
// A new one starts only after the previous one was answered or has timed out.
type Action interface{ action() }

// Query requests the QP's state.
type Query struct{ Op uint64 }

// Prove requests probes through a fresh QP and CQ without other traffic. [Done]
// reports whether all of them remained unanswered (R8).
type Prove struct{ Op uint64 }

// Run runs a rung: RungResumeQP, RungResetQP, RungRecreateQP or RungRebuildCQ;
// RungDevice creates everything on a device that is back. The new objects have
// the generation Gen.
type Run struct {
	Op     uint64
	Gen    uint32
	Rung   Rung
	Reason Reason
}

// Release closes all objects of the device.
type Release struct{ Op uint64 }

// Ready reports that, as far as the interface can tell, it no longer holds any
// object of the device.
type Ready struct{}

// RequestReset requests a reset of the device.
type RequestReset struct{ Reason Reason }

// HoldTraffic stops reading the host's frames; they queue up in the TAP.
type HoldTraffic struct{}

// ReleaseTraffic resumes reading.
type ReleaseTraffic struct{}

// CarrierDown takes the carrier down; the shell decides whether to send or drop
// the frames that are held.
type CarrierDown struct{}

// CarrierUp brings the carrier up; it precedes ReleaseTraffic.
type CarrierUp struct{}

// Entered reports that a recovery entered a rung, and why. Its action follows.
type Entered struct {
	Rung   Rung
	Reason Reason
}

// Ended reports that a recovery has ended, in health or because the shell stopped it. The
// record has its steps, its duration and the outage.
type Ended struct{ Record }

func (Query) action()          {}
func (Prove) action()          {}
func (Run) action()            {}
func (Release) action()        {}
func (Ready) action()          {}
func (RequestReset) action()   {}
func (HoldTraffic) action()    {}
func (ReleaseTraffic) action() {}
func (CarrierDown) action()    {}
func (CarrierUp) action()      {}
func (Entered) action()        {}
func (Ended) action()          {}
