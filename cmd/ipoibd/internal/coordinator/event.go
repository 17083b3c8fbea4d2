package coordinator

import (
	"fmt"
	"time"

	"ipoibd/qprecovery/reset"
)

// Event is one of [Pending], [Ended], [Silent], [Answers].
type Event interface{ event() }

// Pending says that a reset of the device is pending: let go of it, then call
// [Coordinator.Released]. Nothing of the device is opened before [Ended].
type Pending struct{ ID reset.ID }

// Ended says that a reset ended, and how: done, or the reason why the rung
// failed. Either way the device may be opened again. It may come while this
// process still lets go.
type Ended struct{ reset.Ended }

// Silent says that the process that hosts owes an answer and does not give it. A
// reset that was asked for waits until it does, or its process ends.
type Silent struct{ Host Host }

// Answers says that the host is silent no more.
type Answers struct{ Host Host }

func (Pending) event() {}
func (Ended) event()   {}
func (Silent) event()  {}
func (Answers) event() {}

// Host is the process that hosts, as far as it is known here.
type Host struct {
	PID   int32     // 0: of another PID namespace
	Name  string    // for people; empty before it was heard
	Since time.Time // since when it owes an answer; zero: it does not
}

func (h Host) String() string {
	text := "the daemon that hosts the resets of the device"
	if h.PID != 0 {
		text += fmt.Sprintf(", process %d", h.PID)
	}
	if h.Name != "" {
		text += fmt.Sprintf(" (%s)", h.Name)
	}
	return text
}

// Status is the state of a coordinator.
type Status struct {
	Hosting bool           // this process is the host
	Up      bool           // registered with the host
	Host    Host           // zero while there is none
	Phase   reset.Phase    // of the host; elsewhere as far as the host has told
	Reset   reset.ID       // the reset under way; 0: none
	Last    reset.Ended    // the last one that this process took part in
	Members []reset.Member // the clients outside of the host's process
	Refused uint64         // connections not let in by this process
	Err     error          // why there is no host; nil once there is
}
