package freeze

import (
	"cmp"
	"time"
)

// Defaults of a [Config]; Quiet and Probes probes stay below 1 s together.
const (
	DefaultInterval   = 50 * time.Millisecond
	DefaultMaxGap     = 4 * DefaultInterval    // a loaded scheduler is late by one or two intervals
	DefaultQuiet      = 250 * time.Millisecond // four probes a second on an idle link
	DefaultProbeLimit = 200 * time.Millisecond // a thousand times the usual duration of a probe
	DefaultProbes     = 2                      // one may be lost
	DefaultRoundLimit = 5 * time.Second        // a pump that waits for a processor may take seconds
	DefaultRestAfter  = 2                      // half a second; a shorter pause of a conversation costs no wake-up
	DefaultRest       = 5 * time.Second        // costs less than 0.1 % of a core
)

// Config holds the limits; zero values select the defaults.
type Config struct {
	Interval   time.Duration // between samples
	MaxGap     time.Duration // between samples; a longer gap means that the daemon was stalled
	Quiet      time.Duration // without progress before a probe is sent
	ProbeLimit time.Duration // without progress of a probe; see the package documentation
	Probes     int           // consecutive probes without an answer
	RoundLimit time.Duration // for a round of a pump; afterwards it may hang in a post or a poll
	RestAfter  int           // consecutive answered probes, without other work, that make the link idle
	Rest       time.Duration // between samples while the link is idle; see [Detector.Resting]
}

func (c Config) normal() Config {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	c.MaxGap = cmp.Or(c.MaxGap, DefaultMaxGap)
	c.Quiet = cmp.Or(c.Quiet, DefaultQuiet)
	c.ProbeLimit = cmp.Or(c.ProbeLimit, DefaultProbeLimit)
	c.Probes = cmp.Or(c.Probes, DefaultProbes)
	c.RoundLimit = cmp.Or(c.RoundLimit, DefaultRoundLimit)
	c.RestAfter = cmp.Or(c.RestAfter, DefaultRestAfter)
	c.Rest = cmp.Or(c.Rest, DefaultRest)
	return c
}
