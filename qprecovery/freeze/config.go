package freeze

import (
	"cmp"
	"time"
)

// Defaults of a [Config]; together they stay below 1 s.
const (
	DefaultInterval   = 50 * time.Millisecond
	DefaultMaxGap     = 4 * DefaultInterval    // a scheduler under load is late by one or two
	DefaultQuiet      = 250 * time.Millisecond // four probes a second on an idle link
	DefaultProbeLimit = 200 * time.Millisecond // a thousand times what a probe usually takes
	DefaultProbes     = 2                      // one may be lost
)

// Config has the limits; zero values are the defaults.
type Config struct {
	Interval   time.Duration // between samples
	MaxGap     time.Duration // between samples, beyond which the daemon had stalled
	Quiet      time.Duration // without a sign of life before a probe is sent
	ProbeLimit time.Duration // for the next sign of life of a probe, see the package documentation
	Probes     int           // without an answer, one after the other
}

// Bound is how long a freeze may stay unnoticed, while samples come at most
// Interval apart.
func (c Config) Bound() time.Duration {
	c = c.normal()
	return c.Quiet + c.Interval + time.Duration(c.Probes)*(c.ProbeLimit+2*c.Interval)
}

func (c Config) normal() Config {
	c.Interval = cmp.Or(c.Interval, DefaultInterval)
	c.MaxGap = cmp.Or(c.MaxGap, DefaultMaxGap)
	c.Quiet = cmp.Or(c.Quiet, DefaultQuiet)
	c.ProbeLimit = cmp.Or(c.ProbeLimit, DefaultProbeLimit)
	c.Probes = cmp.Or(c.Probes, DefaultProbes)
	return c
}
