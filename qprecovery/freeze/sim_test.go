package freeze

import (
	"time"

	"ipoibd/hca"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// device is an HCA in virtual time: sends complete in the next interval, and
// probes come back, unless it has a fault.
type device struct {
	now         time.Time
	port        hca.PortState
	rung        bool // recovery runs
	completed   uint64
	received    uint64
	outstanding []post
	swallowed   time.Time // the post of a swallowed send; zero: none
	answered    uint64
	probes      int
	traffic     bool // a send in each interval
	peers       bool // a peer sends in each interval

	stopped, deaf, swallow, loseProbe bool // faults
}

type post struct {
	at    time.Time
	probe uint64
}

// tick completes what was posted, then posts.
func (v *device) tick(step time.Duration) {
	v.now = v.now.Add(step)
	v.complete()
	if v.peers && !v.deaf {
		v.received++
	}
	if v.traffic {
		v.post(0)
	}
}

func (v *device) complete() {
	if v.stopped {
		return
	}
	for _, p := range v.outstanding {
		v.completed++
		if p.probe != 0 && !v.deaf && !v.loseProbe {
			v.answered, v.received = p.probe, v.received+1
		}
		v.loseProbe = v.loseProbe && p.probe == 0
	}
	v.outstanding = nil
}

func (v *device) post(probe uint64) {
	if v.swallow && v.swallowed.IsZero() {
		v.swallowed = v.now
		return
	}
	v.outstanding = append(v.outstanding, post{v.now, probe})
}

func (v *device) sample() *Sample {
	s := &Sample{
		Completed: v.completed, Received: v.received, Answered: v.answered,
		Port: v.port, Recovering: v.rung, OldestPost: v.swallowed,
	}
	if s.OldestPost.IsZero() && len(v.outstanding) > 0 {
		s.OldestPost = v.outstanding[0].at
	}
	return s
}

// run samples each step until the time is over or a decision of kind until.
func (v *device) run(d *Detector, step, length time.Duration, until Kind) (Decision, time.Duration) {
	for began := v.now; v.now.Sub(began) < length; {
		v.tick(step)
		got := d.Step(v.now, v.sample())
		if got.Kind == SendProbe {
			v.probes++
			v.post(got.Probe)
		}
		if got.Kind == until && until != Nothing {
			return got, v.now.Sub(began)
		}
	}
	return Decision{}, length
}

func newDevice() *device { return &device{now: epoch, port: hca.PortActive} }
