package freeze

// rest tracks whether the queue pair is idle and works: then samples and probes come once per
// Rest. A single work request other than a probe ends the rest.
type rest struct {
	answered            int    // consecutive probes that were answered at once, while nothing else happened
	completed, received uint64 // counts of the last sample without an outstanding probe
}

// observe ends the rest if the link is busy: if anything but the given number of probes has completed
// since the last call, or for a reason that the caller knows.
func (r *rest) observe(s *Sample, probes uint64, busy bool) {
	if busy || s.Completed != r.completed+probes || s.Received != r.received+probes {
		r.answered = 0
	}
	r.completed, r.received = s.Completed, s.Received
}

// Resting reports whether the next sample is due only Rest after the last one, because the
// link is idle. The caller must take one earlier, at once, when a work request is posted or
// completes: a fault under traffic is then found as early as if the detector had not rested.
func (d *Detector) Resting() bool {
	return d.rest.answered >= RestAfter && d.probe.asked.IsZero()
}
