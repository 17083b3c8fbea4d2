package freeze

import "time"

func (d *Detector) startProbes(now time.Time, s *Sample) Decision {
	d.probe = probe{number: d.probe.number, first: d.probe.number + 1, received: s.Received}
	return d.sendProbe(now, s)
}

func (d *Detector) sendProbe(now time.Time, s *Sample) Decision {
	d.probe.completed = s.Completed
	d.probe.number++
	d.probe.tries++
	d.probe.sent = now
	return Decision{Kind: SendProbe, Probe: d.probe.number}
}

// judgeProbe ends the series when one of it came back and sends complete, or sends
// another, or concludes.
func (d *Detector) judgeProbe(now time.Time, s *Sample) Decision {
	answered := s.Answered >= d.probe.first && s.Answered <= d.probe.number
	mute := s.Completed == d.probe.completed && !s.OldestPost.IsZero()
	switch {
	case answered && !mute:
		d.probe.sent = time.Time{}
		d.receives.since = now
		return Decision{}
	case now.Sub(d.probe.sent) <= d.conf.ProbeLimit:
		return Decision{}
	case d.probe.tries < d.conf.Probes:
		return d.sendProbe(now, s)
	}
	return d.conclude(s)
}

// conclude judges a series without answer by what else has happened since it
// began. Without a send outstanding, or with messages of others received, it
// proves nothing, and a new series begins.
func (d *Detector) conclude(s *Sample) Decision {
	d.probe.sent = time.Time{}
	switch {
	case s.Completed == d.probe.completed && !s.OldestPost.IsZero():
		return d.freeze(CompletionsStopped, d.sends.since)
	case s.Completed != d.probe.completed && s.Received == d.probe.received:
		return d.freeze(DeafReceive, d.receives.since)
	}
	return Decision{}
}
