package hca

import (
	"slices"
	"time"
)

// DurationBounds are the upper bounds of the buckets of [Durations], inclusive: about two a
// decade, from the round trip of a LAN to a wait for a device. The last bucket has no bound.
var DurationBounds = [...]time.Duration{
	100 * time.Microsecond, 300 * time.Microsecond,
	time.Millisecond, 3 * time.Millisecond,
	10 * time.Millisecond, 30 * time.Millisecond,
	100 * time.Millisecond, 300 * time.Millisecond,
	time.Second, 3 * time.Second,
	10 * time.Second, 30 * time.Second,
	100 * time.Second, 300 * time.Second,
}

// Durations is a histogram of durations. Its zero value is empty and ready for use.
type Durations struct {
	Count   uint64
	Sum     time.Duration
	Buckets [len(DurationBounds) + 1]uint64 // each counts only its own durations
}

// Observe adds a duration; a negative one, which only a clock that was set back can give,
// counts as 0.
func (d *Durations) Observe(took time.Duration) {
	took = max(took, 0)
	i, _ := slices.BinarySearch(DurationBounds[:], took)
	d.Buckets[i]++
	d.Count++
	d.Sum += took
}
