package coordinator

import "ipoibd/qprecovery/reset"

// Event is one of [Pending], [Ended].
type Event interface{ event() }

// Pending says that a reset of the device is pending: let go of it, then call
// [Coordinator.Released]. Nothing of the device is opened before [Ended].
type Pending struct{ ID reset.ID }

// Ended says that a reset ended, and how: done, or the reason why the rung
// failed. Either way the device may be opened again. It may come while this
// process still lets go.
type Ended struct{ reset.Ended }

func (Pending) event() {}
func (Ended) event()   {}

// Status is the state of a coordinator.
type Status struct {
	Hosting bool           // this process is the host
	Up      bool           // registered with the host
	HostPID int32          // 0: unknown here
	Phase   reset.Phase    // of the host; elsewhere as far as the host has told
	Reset   reset.ID       // the reset under way; 0: none
	Last    reset.Ended    // the last one that this process took part in
	Members []reset.Member // the clients outside of the host's process
	Refused uint64         // connections not let in by this process
	Err     error          // why there is no host; nil once there is
}
