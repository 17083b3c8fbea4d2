package freeze

import (
	"time"

	"ipoibd/hca"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// device is an HCA in virtual time. Unless it has a fault, sends complete in order in the
// next interval, and probes return.
type device struct {
	now       time.Time
	port      hca.PortState
	rung      bool // recovery is running
	completed uint64
	received  uint64
	waiting   []uint64 // sends, by probe number; 0 if not a probe
	refused   uint64
	probed    uint64
	rounds    uint64 // of each pump
	wire      uint64
	probes    int
	limited   bool    // probes do not return, because the port is a limited member
	traffic   bool    // one send per interval
	peers     bool    // one receive per interval
	backlog   int     // number of sends that the host keeps waiting
	rate      float64 // completions per second; 0 means unlimited
	credit    float64

	// Faults. With full, the queue accepts no sends and has none outstanding, so nothing
	// completes. With refuses, it refuses every send.
	stopped, deaf, loseProbe, full, refuses bool
	blocked                                 bool     // the wire accepts nothing
	eventless                               bool     // receives are found by polls only
	hidden                                  uint64   // receives that were not found yet
	starved                                 bool     // the pumps wait for a processor
	asked                                   []uint64 // probes that starved pumps have not posted
}

// tick completes waiting sends, then posts new ones.
func (v *device) tick(step time.Duration) {
	v.now = v.now.Add(step)
	if v.starved {
		return
	}
	for _, probe := range v.asked {
		v.post(probe)
	}
	v.asked = v.asked[:0]
	v.credit += v.rate * step.Seconds()
	v.complete()
	if v.peers && !v.deaf {
		v.receive()
	}
	if v.traffic {
		v.post(0)
	}
	for len(v.waiting) < v.backlog {
		v.post(0)
	}
}

func (v *device) complete() {
	if v.blocked && len(v.waiting) > 0 {
		v.wire++
	}
	for !v.stopped && !v.full && !v.blocked && len(v.waiting) > 0 && (v.rate == 0 || v.credit >= 1) {
		probe := v.waiting[0]
		v.waiting = v.waiting[1:]
		v.completed++
		v.credit--
		if probe == 0 {
			continue
		}
		v.probed = probe
		if !v.deaf && !v.loseProbe && !v.limited {
			v.receive()
		}
		v.loseProbe = false
	}
	if len(v.waiting) == 0 {
		v.credit = 0
	}
}

// receive completes a receive, which the pump finds by an event or by a poll.
func (v *device) receive() {
	v.hidden++
	if !v.eventless {
		v.find()
	}
}

// find makes the pump find what was received.
func (v *device) find() {
	v.received += v.hidden
	v.hidden = 0
}

func (v *device) post(probe uint64) {
	if v.refuses {
		v.refused++
		return
	}
	v.waiting = append(v.waiting, probe)
}

func (v *device) sample() *Sample {
	return &Sample{
		Completed: v.completed, Waiting: len(v.waiting), Refused: v.refused, Received: v.received, Probed: v.probed,
		SendRounds: v.rounds, RecvRounds: v.rounds, Wire: v.wire,
		Port: v.port, Recovering: v.rung, Limited: v.limited,
	}
}

// run samples at each step until length is over or there is a decision of kind
// until.
func (v *device) run(d *Detector, step, length time.Duration, until Kind) (Decision, time.Duration) {
	for began := v.now; v.now.Sub(began) < length; {
		v.tick(step)
		got := v.obey(d.Step(v.now, v.sample()))
		if got.Kind == until && until != Nothing {
			return got, v.now.Sub(began)
		}
	}
	return Decision{}, length
}

// obey carries out a decision, and returns it.
func (v *device) obey(got Decision) Decision {
	switch {
	case got.Kind == SendProbe:
		v.probes++
		v.asked = append(v.asked, got.Probe)
	case got.Kind == Poll && !v.starved:
		v.rounds++
		v.find()
	}
	return got
}

func newDevice() *device { return &device{now: epoch, port: hca.PortActive} }
