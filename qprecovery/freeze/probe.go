package freeze

import "time"

// probe is the current series of probes.
type probe struct {
	number   uint64    // of the latest probe; never reused
	asked    time.Time // when the latest probe was requested; zero if there is no series
	sent     time.Time // when its send was first seen completed; zero if not yet
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
	case now.Sub(d.lastProgress()) <= d.conf.ProbeLimit:
		return Decision{}
	case p.tries < d.conf.Probes:
		return d.sendProbe(now)
	}
	return d.suspect()
}

// lastProgress returns when the probe last made progress: until its send completes,
// completions of earlier sends count as progress.
func (d *Detector) lastProgress() time.Time {
	if d.probe.sent.IsZero() {
		return latest(d.probe.asked, d.sends.since)
	}
	return d.probe.sent
}

// suspect reports a suspected freeze. Step reports nothing afterwards.
func (d *Detector) suspect() Decision {
	d.suspected = true
	out := Decision{Kind: Suspect, Deaf: !d.probe.sent.IsZero(), Since: d.receives.since}
	if !out.Deaf {
		out.Since = latest(d.sends.since, d.waiting)
	}
	return out
}
