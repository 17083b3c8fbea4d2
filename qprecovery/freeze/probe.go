package freeze

import "time"

// probe is the current series of probes.
type probe struct {
	number   uint64    // of the latest probe; never reused
	asked    time.Time // when the latest probe was requested; zero if there is no series
	sent     time.Time // when its send was first seen completed; zero if not yet
	tries    int
	received uint64 // Sample.Received at the start of the series

	polled                 time.Time // when rounds of the pumps were requested; zero if not
	sendRounds, recvRounds uint64    // at that time
}

func (d *Detector) startProbes(now time.Time, s *Sample) Decision {
	d.probe = probe{number: d.probe.number, received: s.Received}
	return d.sendProbe(now)
}

func (d *Detector) sendProbe(now time.Time) Decision {
	p := &d.probe
	p.number++
	p.tries++
	p.asked, p.sent, p.polled = now, time.Time{}, time.Time{}
	d.events.tardy = false
	return Decision{Kind: SendProbe, Probe: p.number}
}

// judgeProbe ends the series once the probe was sent and anything was received, if it can be. If the probe
// stays unanswered although the pumps run, it sends another probe or suspects a freeze.
func (d *Detector) judgeProbe(now time.Time, s *Sample) Decision {
	p := &d.probe
	if p.sent.IsZero() && s.Probed >= p.number {
		p.sent = now
	}
	waited := now.Sub(d.lastProgress())
	switch {
	case !p.sent.IsZero() && (s.Limited || s.Received != p.received):
		d.rest.answered++
		d.rest.observe(s, 1, p.tries > 1 || !p.polled.IsZero() || !d.waiting.IsZero())
		p.asked = time.Time{}
		return Decision{}
	case waited <= ProbeLimit/2:
		p.polled = time.Time{}
		return Decision{}
	case p.polled.IsZero():
		p.polled, p.sendRounds, p.recvRounds = now, s.SendRounds, s.RecvRounds
		return Decision{Kind: Poll}
	}
	asked := now.Sub(p.polled)
	switch {
	case asked > RoundLimit:
		return d.suspect()
	case !p.pumpsRan(s):
		return Decision{Kind: Poll}
	case asked > ProbeLimit:
		d.startLimit(now)
		return Decision{}
	case waited <= ProbeLimit:
		return Decision{}
	case p.tries < Probes:
		return d.sendProbe(now)
	}
	return d.suspect()
}

// pumpsRan reports whether both pumps have completed a round that began after it was requested.
// A round that was under way then does not count.
func (p *probe) pumpsRan(s *Sample) bool {
	const rounds = 2
	return s.SendRounds-p.sendRounds >= rounds && s.RecvRounds-p.recvRounds >= rounds
}

// startLimit makes ProbeLimit start over: the pumps were so late that they may not have done
// anything for the probe before.
func (d *Detector) startLimit(now time.Time) {
	p := &d.probe
	p.asked, p.polled = now, time.Time{}
	if !p.sent.IsZero() {
		p.sent = now
	}
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
	out := Decision{Kind: Suspect, Unanswered: !d.probe.sent.IsZero(), Since: d.receives.since}
	if !out.Unanswered {
		out.Since = latest(d.sends.since, d.waiting)
	}
	return out
}
