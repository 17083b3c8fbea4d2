package freeze

import (
	"time"

	"ipoibd/hca"
)

// Sample is what the shell sees at a moment. The counts begin anew with a new
// queue pair, for which [Detector.Restart] is called.
type Sample struct {
	Completed  uint64    // send completions so far, those of probes included
	OldestPost time.Time // when the oldest outstanding send was posted; zero: none is
	Received   uint64    // receive completions so far, those of probes included
	Answered   uint64    // the latest probe that came back; 0: none
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
	SendProbe      // send Decision.Probe from the queue pair to itself; if it cannot be posted, that is no matter
	Frozen         // the device has frozen; given once
)

// Decision is what is to be done. Its other fields belong to one kind each.
type Decision struct {
	Kind   Kind
	Probe  uint64    // SendProbe: the number to find in the answer
	Reason Reason    // Frozen
	Since  time.Time // Frozen: when the queue pair was last known to work
}

// Reason names a freeze; its String is the same in log, metric and history.
type Reason uint8

// Reasons.
const (
	None Reason = iota
	SendTimeout
	CompletionsStopped
	DeafReceive
	numReason
)

var reasonNames = [numReason]string{"none", "send_timeout", "completions_stopped", "deaf_receive"}

func (r Reason) String() string {
	if r < numReason {
		return reasonNames[r]
	}
	return "unknown"
}
