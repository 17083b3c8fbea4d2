package iface

import "time"

// staleAfter is how long the host's frames wait for a carrier that went down.
// Until then they are worth sending: a TCP whose retransmissions are among them
// goes on at once. What is older does harm: a TCP takes the time that the
// acknowledgement took for the round-trip time, three times of which it waits
// where anything is lost then. After outages of 3 s whose frames had all waited,
// one connection in three stood still for 5-10 s more.
const staleAfter = 500 * time.Millisecond

// stale drops the host's frames while there is no carrier (R27): the kernel then sends no
// more of them, and those already in the TAP's queue become too old.
type stale struct {
	at   time.Time // when to begin; zero: never, or it has begun
	pump pump      // never runs beside the transmit pump
}

// begin notes that there is no carrier any more. Frames do not flow.
func (s *stale) begin(now time.Time) {
	if s.at.IsZero() && !s.pump.running {
		s.at = now.Add(staleAfter)
	}
}

// expire begins to drop, when that is due.
func (s *stale) expire(now time.Time) {
	if !s.at.IsZero() && !now.Before(s.at) {
		s.at = time.Time{}
		s.pump.start(0)
	}
}

// end lets frames be.
func (s *stale) end() {
	s.at = time.Time{}
	s.pump.halt()
}
