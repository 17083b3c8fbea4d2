package qprecovery

import (
	"time"

	"ipoibd/hca"
)

// Event is an input of [Ladder.Step].
//
// A Gen names a generation of the interface's objects: that of [Attached] or of
// the [Run] that made them. An Op names one action, and its result carries it.
// What bears an earlier one, or one that was never given out, is counted as
// stale and ignored.
type Event interface{ event() }

// Attached says that the shell made the interface's objects by itself, because
// ib0 came up or its plan changed. Gen is [Ladder.NextGen] or a later one.
type Attached struct{ Gen uint32 }

// Stopped says that the shell takes, or took, the interface's objects down by
// itself, the carrier with them. A recovery under way ends, and an operation
// under way is the shell's to cancel.
type Stopped struct{}

// Fault reports a completion, an event or an error of a verb, once classified.
type Fault struct {
	Gen     uint32 // interface: of the object concerned; device: of the opened device
	Class   Class
	Request *Request  // for a work request; the ladder copies what it keeps
	Since   time.Time // service is known to have worked until then; zero: until now
}

// Suspected reports that the freeze detector suspects a freeze.
type Suspected struct {
	Gen   uint32
	Since time.Time // as in Fault
}

// Done is the result of an operation.
type Done struct {
	Op    uint64
	Class Class       // of the error of its first verb that failed, else ClassSuccess
	State hca.QPState // the state found, when the operation was a Query
	// Frozen is the result of a Prove: no probe was answered, although the port was
	// active and the wire not full.
	Frozen bool
}

// DeviceDown says that the device is about to be reset, or is lost.
type DeviceDown struct{}

// DeviceUp says that the device is there again.
type DeviceUp struct{}

// DeviceGaveUp says that the device is not waited for any more.
type DeviceGaveUp struct{}

// Order is the operator's word: RungResetQP, RungRebuildCQ or RungDevice. It is
// above every budget, cuts a back-off short and is not counted as a use. Other
// rungs are ignored.
type Order struct{ Rung Rung }

// Tick says that time has passed; see NextDeadline.
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

// Action is an output of [Ladder.Step], to be done in the order given. Those with
// an Op are operations: each is answered by one [Done], however late, and there
// is never a second one while one is unanswered and in time.
type Action interface{ action() }

// Query asks for the QP's state.
type Query struct{ Op uint64 }

// Prove asks for probes through a fresh QP and CQ that carry nothing else. [Done]
// reports whether all of them stayed unanswered (R8).
type Prove struct{ Op uint64 }

// Run runs a rung: RungResumeQP, RungResetQP, RungRecreateQP, RungRebuildCQ, or
// with RungDevice everything from the start on a device that is there again.
// What it makes is of generation Gen.
type Run struct {
	Op     uint64
	Gen    uint32
	Rung   Rung
	Reason Reason
}

// Release closes everything that is held of the device.
type Release struct{ Op uint64 }

// Ready says that nothing of the device is held any more, as far as the
// interface can tell.
type Ready struct{}

// RequestReset asks for a reset of the device.
type RequestReset struct{ Reason Reason }

// HoldTraffic stops reading the host's frames; the TAP's queue takes them.
type HoldTraffic struct{}

// ReleaseTraffic goes on reading.
type ReleaseTraffic struct{}

// CarrierDown takes the carrier away; what is held is the shell's to send later or
// to drop.
type CarrierDown struct{}

// CarrierUp gives it back; it comes before ReleaseTraffic.
type CarrierUp struct{}

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
