package freeze

import "time"

// The limits; Quiet and Probes probes stay below 1 s together.
const (
	Interval   = 50 * time.Millisecond  // between samples
	MaxGap     = 4 * Interval           // a longer gap is a stall; a loaded scheduler is late by one or two intervals
	Quiet      = 250 * time.Millisecond // without progress before a probe is sent: four a second on an idle link
	ProbeLimit = 200 * time.Millisecond // without progress of a probe: a thousand times what one usually takes
	Probes     = 2                      // consecutive ones without an answer; one may be lost
	RoundLimit = 5 * time.Second        // for a round of a pump, which may wait for a processor; later it may hang
	RestAfter  = 2                      // answered probes that make a link idle; shorter pauses then cost no wake-up
	Rest       = 5 * time.Second        // between samples of an idle link; costs less than 0.1 % of a core
)
