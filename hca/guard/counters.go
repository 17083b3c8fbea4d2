package guard

import (
	"sync/atomic"

	"ipoibd/hca"
)

// counts are the guard's own counters.
type counts struct {
	staleWCs       atomic.Uint64 // completions that match no posted request
	staleEvents    atomic.Uint64 // events about objects that no longer exist
	flushed        atomic.Uint64 // requests flushed in software
	abandoned      atomic.Uint64 // verbs that had not returned when their caller did
	stuck          atomic.Int64  // abandoned verbs that have not returned
	late           atomic.Uint64 // abandoned verbs that have returned
	releasesFailed atomic.Uint64 // releases that the backend of a failed device refused
}

// Counters implements [hca.Device]. It returns the backend's counters, then the guard's.
func (d *Device) Counters() []hca.Counter {
	c := &d.counts
	return append(d.inner.Counters(),
		hca.Counter{Name: "guard_stale_completions", Value: c.staleWCs.Load()},
		hca.Counter{Name: "guard_stale_events", Value: c.staleEvents.Load()},
		hca.Counter{Name: "guard_flushed", Value: c.flushed.Load()},
		hca.Counter{Name: "guard_verbs_abandoned", Value: c.abandoned.Load()},
		hca.Counter{Name: "guard_verbs_stuck", Value: uint64(c.stuck.Load())},
		hca.Counter{Name: "guard_late_answers", Value: c.late.Load()},
		hca.Counter{Name: "guard_releases_failed", Value: c.releasesFailed.Load()},
		hca.Counter{Name: "guard_zombies", Value: uint64(d.opts.Zombies.n.Load())},
	)
}
