package freeze

import "time"

// Detector is passive and must be used by one goroutine. Create it with [New].
type Detector struct {
	last      time.Time // time of the last sample; zero if none yet
	suspected bool      // reported; silent until Restart

	works    time.Time // since when the queue pair has been judged; zero if it is not judged
	wire     uint64    // Sample.Wire of the last sample
	sends    progress
	refused  uint64    // Sample.Refused at the last change of Sample.Completed
	waiting  time.Time // since when sends have been waiting or refused; zero if neither
	receives progress
	probe    probe
	events   events
	rest     rest
}

// progress tracks a count.
type progress struct {
	count uint64
	since time.Time // when the count last changed, or began to matter
}

// update reports whether the count has changed.
func (p *progress) update(now time.Time, count uint64) bool {
	if count == p.count {
		return false
	}
	*p = progress{count, now}
	return true
}

// New returns a detector.
func New() *Detector { return new(Detector) }

// Restart makes the detector start over, for a rebuilt queue pair. Probe
// numbers continue, so that an old probe is not mistaken for a new one.
func (d *Detector) Restart() {
	*d = Detector{
		probe:  probe{number: d.probe.number},
		events: events{total: d.events.total, lost: d.events.lost},
	}
}

// NextDeadline returns when the next sample is due, or false if it is due at
// once. mayRest is false while other queues of the queue pair have work: then the idle one is watched too.
func (d *Detector) NextDeadline(mayRest bool) (time.Time, bool) {
	at := d.last.Add(Interval)
	if mayRest {
		at = d.due()
	}
	return at, !d.last.IsZero()
}

// due returns when the next sample is due at the latest. At rest that is at the next multiple of Rest since
// 1970, when everything else that rests on this host wakes up too.
func (d *Detector) due() time.Time {
	if d.Resting() {
		return d.last.Add(Rest - time.Duration(d.last.UnixNano())%Rest)
	}
	return d.last.Add(Interval)
}

// Step judges a sample taken at now, which must not decrease. It does not block
// and keeps no reference to s.
func (d *Detector) Step(now time.Time, s *Sample) Decision {
	gap := now.Sub(d.due()) + Interval // without the part that is the rest's
	stalled := !d.last.IsZero() && gap > MaxGap
	if stalled || d.last.IsZero() {
		d.works = time.Time{}
	}
	d.last = now
	d.events.tardy = d.events.tardy || gap > Interval*3/2
	d.update(now, s)
	out := Decision{}
	switch {
	case d.suspected:
	case stalled:
		out.Kind = Poll
	case d.events.suspect():
		return Decision{Kind: Suspect, EventsLost: true, Since: now}
	default:
		out = d.judge(now, s)
	}
	d.events.decided(out.Kind == Poll, d.probe.polled.Equal(now))
	return out
}

// update updates the detector's state. All times start over when the queue pair
// begins to work, and if the wire was full since the last sample.
func (d *Detector) update(now time.Time, s *Sample) {
	blocked := s.Wire != d.wire
	d.wire = s.Wire
	switch {
	case !s.working():
		d.works, d.rest = time.Time{}, rest{}
		d.events.received(false)
		return
	case d.works.IsZero() || blocked:
		d.works, d.waiting, d.probe.asked = now, time.Time{}, time.Time{}
		d.sends, d.receives = progress{s.Completed, now}, progress{s.Received, now}
		d.refused = s.Refused
		d.rest = rest{}
	}
	d.events.received(d.receives.update(now, s.Received))
	if d.sends.update(now, s.Completed) {
		d.refused = s.Refused
	}
	switch {
	case s.Waiting == 0 && s.Refused == d.refused:
		d.waiting = time.Time{}
	case d.waiting.IsZero():
		d.waiting = now
	}
}

func (d *Detector) judge(now time.Time, s *Sample) Decision {
	switch {
	case d.works.IsZero():
		return Decision{}
	case !d.probe.asked.IsZero():
		return d.judgeProbe(now, s)
	}
	d.rest.observe(s, 0, !d.waiting.IsZero())
	noReceive := now.Sub(d.receives.since) > Quiet
	noSend := !d.waiting.IsZero() && now.Sub(latest(d.waiting, d.sends.since)) > Quiet
	switch {
	case noSend, noReceive && !s.Limited:
		return d.startProbes(now, s)
	case noReceive: // as if a probe had been answered
		d.receives.since = now
		d.rest.answered++
	}
	return Decision{}
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
