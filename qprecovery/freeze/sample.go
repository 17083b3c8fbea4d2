package freeze

import (
	"time"

	"ipoibd/hca"
)

// Sample is what the shell sees at a moment. The counts start over with a new
// queue pair, for which [Detector.Restart] is called.
type Sample struct {
	Completed  uint64 // send completions so far, those of probes included
	Waiting    int    // sends without a completion, including those not posted yet
	Refused    uint64 // sends that the queue pair has refused so far
	Received   uint64 // receive completions so far, those of probes included
	Probed     uint64 // the latest probe whose send has completed; 0: none
	Wire       uint64 // from [hca.WireBlockedOf]
	Port       hca.PortState
	Recovering bool // a rung runs: the queue pair is not expected to work
}

// working reports whether sends and receives can be expected to work.
func (s *Sample) working() bool { return s.Port == hca.PortActive && !s.Recovering }

// Kind says what a [Decision] asks for.
type Kind uint8

// Kinds of decisions.
const (
	Nothing   Kind = iota
	Poll           // poll all completions, then sample again
	SendProbe      // send Decision.Probe from the queue pair to itself; a probe that cannot be posted counts as unanswered
	Suspect        // the queue pair seems to have frozen; reported once
)

// Decision says what the caller must do. Its other fields belong to one kind each.
type Decision struct {
	Kind  Kind
	Probe uint64    // SendProbe: its number
	Deaf  bool      // Suspect: the last probe was sent and not received; false: it was not sent
	Since time.Time // Suspect: when the queue pair was last known to work
}
