package qprecovery

import "time"

// DefaultCarrierBound is how long the host's frames are held before the carrier
// goes down: far above what a rung takes (5-100 ms), so that a short one is not
// seen by the host's stack, and below TCP's second retransmission (200 ms, then
// 400 ms), so that a long one does not pile up frames that nobody waits for.
const DefaultCarrierBound = 500 * time.Millisecond

// traffic is what the host's frames are told (R9).
type traffic struct {
	bound time.Duration
	state trafficState
	since time.Time // held
}

type trafficState uint8

const (
	flowing trafficState = iota
	held
	noCarrier
)

func (t *traffic) hold(now time.Time, out []Action) []Action {
	if t.state != flowing {
		return out
	}
	t.state, t.since = held, now
	return append(out, HoldTraffic{})
}

func (t *traffic) release(out []Action) []Action {
	switch t.state {
	case flowing:
		return out
	case noCarrier:
		out = append(out, CarrierUp{})
	case held:
	}
	t.state = flowing
	return append(out, ReleaseTraffic{})
}

// cut takes the carrier down at once.
func (t *traffic) cut(out []Action) []Action {
	if t.state != held {
		return out
	}
	t.state = noCarrier
	return append(out, CarrierDown{})
}

// forget leaves carrier and frames to the shell.
func (t *traffic) forget() { t.state = flowing }

func (t *traffic) deadline() time.Time {
	if t.state != held {
		return time.Time{}
	}
	return t.since.Add(t.bound)
}

func (t *traffic) expire(now time.Time, out []Action) []Action {
	if !due(now, t.deadline()) {
		return out
	}
	return t.cut(out)
}
