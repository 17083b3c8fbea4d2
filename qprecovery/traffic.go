package qprecovery

import "time"

// CarrierBound is how long the host's frames are held before the carrier
// goes down. It is far above the duration of a rung (5-100 ms), so that the
// host's stack does not notice a short recovery, and below TCP's second
// retransmission (200 ms, then 400 ms), so that stale frames do not pile up
// during a long one.
const CarrierBound = 500 * time.Millisecond

// traffic controls the flow of the host's frames (R9).
type traffic struct {
	state trafficState
	since time.Time // when frames were first held
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

// reset leaves carrier and frames to the shell.
func (t *traffic) reset() { t.state = flowing }

func (t *traffic) deadline() time.Time {
	if t.state != held {
		return time.Time{}
	}
	return t.since.Add(CarrierBound)
}

func (t *traffic) expire(now time.Time, out []Action) []Action {
	if !due(now, t.deadline()) {
		return out
	}
	return t.cut(out)
}
