package freeze

import "time"

// Detector is passive: one goroutine calls it. Make one with [New].
type Detector struct {
	conf   Config
	last   time.Time // the last sample; zero: none yet
	frozen bool      // told; silent until Restart

	sends    progress
	receives progress
	probe    probe
	works    time.Time // since when the path is expected to work; zero: it is not
}

// progress follows a count.
type progress struct {
	count uint64
	since time.Time // when the count last changed, or began to matter
}

func (p *progress) update(now time.Time, count uint64) {
	if count != p.count {
		*p = progress{count, now}
	}
}

// probe is the present series of probes.
type probe struct {
	number    uint64    // of the latest; numbers go on for ever
	sent      time.Time // when it was asked for; zero: no series is under way
	tries     int
	first     uint64 // the first number of the series
	completed uint64 // Sample.Completed when the latest was asked for
	received  uint64 // Sample.Received at the start of the series
}

// New returns a detector.
func New(conf Config) *Detector { return &Detector{conf: conf.normal()} }

// Restart makes the detector judge anew, for a queue pair that was rebuilt.
// Numbers of probes go on, so that an old answer is no new one.
func (d *Detector) Restart() {
	*d = Detector{conf: d.conf, probe: probe{number: d.probe.number}}
}

// NextDeadline returns when the next sample is due; false: at once.
func (d *Detector) NextDeadline() (time.Time, bool) {
	return d.last.Add(d.conf.Interval), !d.last.IsZero()
}

// Step judges a sample taken at now. Time must not run backwards. It does not
// block and keeps no reference to s.
func (d *Detector) Step(now time.Time, s *Sample) Decision {
	stalled := !d.last.IsZero() && now.Sub(d.last) > d.conf.MaxGap
	if stalled || d.last.IsZero() {
		d.works = time.Time{}
	}
	d.last = now
	d.follow(now, s)
	switch {
	case d.frozen:
		return Decision{}
	case stalled:
		return Decision{Kind: Poll}
	}
	return d.judge(now, s)
}

// follow updates what is known. When the path begins to work, all its times begin.
func (d *Detector) follow(now time.Time, s *Sample) {
	switch {
	case !s.working():
		d.works = time.Time{}
		d.probe.sent = time.Time{}
	case d.works.IsZero():
		d.works = now
		d.sends, d.receives = progress{s.Completed, now}, progress{s.Received, now}
		d.probe.sent = time.Time{}
	default:
		d.sends.update(now, s.Completed)
		d.receives.update(now, s.Received)
		if s.OldestPost.After(d.sends.since) {
			d.sends.since = s.OldestPost // it was idle until then
		}
	}
}

func (d *Detector) judge(now time.Time, s *Sample) Decision {
	if d.works.IsZero() {
		return Decision{}
	}
	if d.overdue(now, s) {
		return d.freeze(SendTimeout, latest(s.OldestPost, d.works))
	}
	if !d.probe.sent.IsZero() {
		return d.judgeProbe(now, s)
	}
	if d.quiet(now, s) {
		return d.startProbes(now, s)
	}
	return Decision{}
}

// freeze tells of a freeze, once.
func (d *Detector) freeze(why Reason, since time.Time) Decision {
	d.frozen = true
	return Decision{Kind: Frozen, Reason: why, Since: since}
}

// overdue: the oldest send was passed by others and is late. If none passed it,
// probes decide.
func (d *Detector) overdue(now time.Time, s *Sample) bool {
	if s.OldestPost.IsZero() || now.Sub(latest(s.OldestPost, d.works)) <= d.conf.SendLimit {
		return false
	}
	return d.sends.since.After(latest(s.OldestPost, d.works))
}

// quiet: there is no sign of life of one side.
func (d *Detector) quiet(now time.Time, s *Sample) bool {
	deaf := now.Sub(d.receives.since) > d.conf.Quiet
	mute := !s.OldestPost.IsZero() && now.Sub(d.sends.since) > d.conf.Quiet
	return deaf || mute
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
