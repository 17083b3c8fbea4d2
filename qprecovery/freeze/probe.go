package freeze

import "time"

// probe is the present series of probes.
type probe struct {
	number   uint64    // of the latest; never used again
	asked    time.Time // when the latest was asked for; zero: no series is under way
	sent     time.Time // when its send was seen to have completed; zero: not yet
	tries    int
	received uint64 // Sample.Received at the start of the series
}

func (d *Detector) startProbes(now time.Time, s *Sample) Decision {
	d.probe = probe{number: d.probe.number, received: s.Received}
	return d.sendProbe(now)
}

func (d *Detector) sendProbe(now time.Time) Decision {
	d.probe.number++
	d.probe.tries++
	d.probe.asked, d.probe.sent = now, time.Time{}
	return Decision{Kind: SendProbe, Probe: d.probe.number}
}

// judgeProbe ends the series once the probe was sent and anything was received. If
// the probe stays unanswered, it sends another probe or suspects a freeze.
func (d *Detector) judgeProbe(now time.Time, s *Sample) Decision {
	p := &d.probe
	if p.sent.IsZero() && s.Probed >= p.number {
		p.sent = now
	}
	switch {
	case !p.sent.IsZero() && s.Received != p.received:
		p.asked = time.Time{}
		return Decision{}
	case now.Sub(d.lastSign()) <= d.conf.ProbeLimit:
		return Decision{}
	case p.tries < d.conf.Probes:
		return d.sendProbe(now)
	}
	return d.suspect()
}

// lastSign returns when the probe last made progress: until its send completes, the
// completions of the sends before it show that its turn will come.
func (d *Detector) lastSign() time.Time {
	if d.probe.sent.IsZero() {
		return latest(d.probe.asked, d.sends.since)
	}
	return d.probe.sent
}

// suspect reports a suspected freeze, once.
func (d *Detector) suspect() Decision {
	d.suspected = true
	out := Decision{Kind: Suspect, Deaf: !d.probe.sent.IsZero(), Since: d.receives.since}
	if !out.Deaf {
		out.Since = latest(d.sends.since, d.waiting)
	}
	return out
}
