package freeze

import (
	"time"

	"ipoibd/hca"
)

// Sample is the state of the data path at one time. The counts start over with
// a new queue pair, for which the caller must call [Detector.Restart].
type Sample struct {
	Completed  uint64 // send completions so far, including probes
	Waiting    int    // sends without a completion, including those not posted yet
	Refused    uint64 // sends that the queue pair has refused so far
	Received   uint64 // receive completions so far, including probes
	Probed     uint64 // number of the latest probe whose send has completed; 0 if none
	SendRounds uint64 // rounds of the send pump so far; each takes completions and posts sends
	RecvRounds uint64 // rounds of the receive pump so far; read, like SendRounds, before the other counts
	Wire       uint64 // from [hca.WireBlockedOf]
	Port       hca.PortState
	Recovering bool // a rung is running, so the queue pair need not work
	Limited    bool // the port is a limited member of the partition, so the queue pair receives no probe
}

// working reports whether sends and receives can be expected to work.
func (s *Sample) working() bool { return s.Port == hca.PortActive && !s.Recovering }

// Kind is what a [Decision] requests.
type Kind uint8

// Kinds of decisions.
const (
	Nothing   Kind = iota
	Poll           // make both pumps begin a round
	SendProbe      // send Decision.Probe from the queue pair to itself; if that fails, it counts as unanswered
	Suspect        // the queue pair seems to have frozen, which is reported once, or events are lost
)

// Decision is the action that the caller must take. Each field except Kind belongs to
// one kind.
type Decision struct {
	Kind       Kind
	Probe      uint64    // SendProbe: its number
	Unanswered bool      // Suspect: the last probe was sent but not received; if false, it was not sent
	Since      time.Time // Suspect: when the queue pair was last known to work
	// EventsLost, of Suspect: the queue pair works, but only polls find what it has received. It is
	// reported again and again while that lasts.
	EventsLost bool
}
