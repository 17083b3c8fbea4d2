package freeze

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

const (
	// bound is the maximum time before a freeze is suspected, if samples are at most Interval apart (see the package
	// documentation).
	bound = Quiet + Interval + Probes*(ProbeLimit+2*Interval)
	step  = Interval
)

func TestR08Bound(t *testing.T) {
	if got := bound; got != 900*time.Millisecond {
		t.Errorf("bound %v, want 900 ms", got)
	}
}

// Each fault is suspected once, within the bound, under each kind of traffic.
func TestR08Suspected(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(*device)
		deaf  bool
	}{
		{"completions stop", func(v *device) { v.stopped = true }, false},
		{"deaf receive", func(v *device) { v.deaf = true }, true},
		{"full queue with nothing outstanding", func(v *device) { v.full = true }, false},
		{"every post refused", func(v *device) { v.refuses = true }, false},
	} {
		for load := range 4 {
			v, d := newDevice(), New()
			v.traffic, v.peers = load&1 != 0, load&2 != 0
			v.run(d, step, 5*time.Second, Nothing)
			c.fault(v)
			if v.peers && !v.traffic && !v.deaf {
				continue // nothing uses the send queue
			}
			got, took := v.run(d, step, 10*time.Second, Suspect)
			t.Logf("%s, sending %v, receiving %v: suspected after %v", c.name, v.traffic, v.peers, took)
			since := v.now.Sub(got.Since)
			if got.Kind != Suspect || got.Unanswered != c.deaf || took > bound || since > took+step+Quiet || since <= 0 {
				t.Errorf("%s: %+v, %v ago, after %v; want it within %v", c.name, got, since, took, bound)
			}
			if again, _ := v.run(d, step, 5*time.Second, Suspect); again.Kind == Suspect {
				t.Errorf("%s: suspected twice, want once", c.name)
			}
		}
	}
}

// The queue pair of a limited member does not receive its own probes. It is probed only while sends wait, rests like
// another, and is suspected only if sends do not complete, within the same bound.
func TestR08LimitedMember(t *testing.T) {
	for load := range 4 {
		v, d := newDevice(), New()
		v.limited, v.traffic, v.peers = true, load&1 != 0, load&2 != 0
		if got, at := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect || v.probes != 0 {
			t.Errorf("sending %v, receiving %v: %+v after %v, %d probes", v.traffic, v.peers, got, at, v.probes)
		}
		if idle := load == 0; d.Resting() != idle {
			t.Errorf("sending %v, receiving %v: resting is %v", v.traffic, v.peers, d.Resting())
		}
		v.stopped, v.traffic = true, true
		if got, took := v.run(d, step, 10*time.Second, Suspect); got.Kind != Suspect || got.Unanswered || took > bound {
			t.Errorf("sends that do not complete: %+v after %v; want it within %v", got, took, bound)
		}
	}
	v, d := newDevice(), New()
	v.limited, v.backlog, v.rate = true, 512, 600 // each send waits for 0.9 s
	if got, at := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect {
		t.Errorf("a long queue: %+v after %v", got, at)
	}
}

// Situations that only resemble a freeze raise no suspicion.
func TestR08NotSuspected(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup func(*device)
	}{
		{"idle link", func(*device) {}},
		{"busy", func(v *device) { v.traffic, v.peers = true, true }},
		{"sends only", func(v *device) { v.traffic = true }},
		{"receives only", func(v *device) { v.peers = true }},
		{"port down", func(v *device) { v.port, v.traffic, v.stopped, v.deaf = hca.PortDown, true, true, true }},
		{"recovery", func(v *device) { v.rung, v.traffic, v.stopped, v.deaf = true, true, true, true }},
		{"one probe lost", func(v *device) { v.loseProbe = true }},
		{"one send refused", func(v *device) { v.refused, v.peers = 1, true }},
	} {
		v, d := newDevice(), New()
		c.setup(v)
		if got, at := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect {
			t.Errorf("%s: suspected %+v after %v", c.name, got, at)
		}
	}
}

// A long queue on a slow link delays every send, including probes: 512 sends at 600 down to
// 8 completions a second. At 8 each send waits for a minute.
func TestR07SlowLinkIsNotSuspected(t *testing.T) {
	for _, rate := range []float64{600, 60, 8} {
		for _, peers := range []bool{false, true} {
			v, d := newDevice(), New()
			v.backlog, v.rate, v.peers = 512, rate, peers
			if got, at := v.run(d, step, 10*time.Minute, Suspect); got.Kind == Suspect {
				t.Errorf("%v completions/s, peers %v: %+v after %v", rate, peers, got, at)
			}
		}
	}
}

// A receive queue that gets nothing is suspected even behind a busy send queue, once
// the probe has passed through that queue.
func TestR08NoReceivesBehindALongQueue(t *testing.T) {
	v, d := newDevice(), New()
	v.backlog, v.rate, v.deaf = 512, 1000, true
	queue := 512 * time.Second / 1000
	got, took := v.run(d, step, time.Minute, Suspect)
	if want := bound + 2*(queue+step); got.Kind != Suspect || !got.Unanswered || took > want {
		t.Errorf("%+v after %v, want it within %v", got, took, want)
	}
}

// Periods in which the wire accepts nothing raise no suspicion: neither twice 1.2 s, nor
// ten times 3 s, nor an hour. A later fault is suspected within the bound.
func TestR07BlockedWireIsNotSuspected(t *testing.T) {
	for _, c := range []struct {
		times       int
		block, rest time.Duration
	}{
		{2, 1200 * time.Millisecond, 20 * time.Second},
		{10, 3 * time.Second, time.Second},
		{1, time.Hour, time.Second},
	} {
		for load := range 4 {
			v, d := newDevice(), New()
			v.traffic, v.peers = load&1 != 0, load&2 != 0
			for range c.times {
				v.blocked = true
				got, _ := v.run(d, step, c.block, Suspect)
				v.blocked = false
				after, _ := v.run(d, step, c.rest, Suspect)
				if got.Kind == Suspect || after.Kind == Suspect {
					t.Fatalf("%v, load %d: suspected %+v, then %+v", c.block, load, got, after)
				}
			}
			v.stopped, v.traffic = true, true
			if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || took > bound {
				t.Errorf("%+v after %v, want a suspicion within %v", got, took, bound)
			}
		}
	}
}

// An idle link is probed at most four times a second, a busy one never.
func TestR08Probes(t *testing.T) {
	v, d := newDevice(), New()
	v.run(d, step, 10*time.Second, Nothing)
	if v.probes < 20 || v.probes > 40 {
		t.Errorf("%d probes in 10 s on an idle link", v.probes)
	}
	v, d = newDevice(), New()
	v.traffic, v.peers = true, true
	if v.run(d, step, 10*time.Second, Nothing); v.probes != 0 {
		t.Errorf("%d probes on a busy link", v.probes)
	}
}

// After the daemon was stopped for 10 s, the detector first requests a poll, and then
// suspects nothing, although the sends were old at the first sample.
func TestR08Stall(t *testing.T) {
	v, d := newDevice(), New()
	v.traffic = true
	v.run(d, step, time.Second, Nothing)
	v.stopped = true // completions are not polled
	v.tick(10 * time.Second)
	if got := d.Step(v.now, v.sample()); got.Kind != Poll {
		t.Fatalf("%+v, want a poll", got)
	}
	v.stopped = false
	if got, _ := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect {
		t.Errorf("suspected %+v", got)
	}
	if v.tick(MaxGap); d.Step(v.now, v.sample()).Kind == Poll {
		t.Error("a sample that is late by less than the bound counts as a stall")
	}
}

// Pumps that wait for a processor do not look like a freeze, whatever the length and number of
// the waits. A freeze in between is suspected once the pumps run.
func TestR08StarvedPumpsAreNotSuspected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, d := newDevice(), New()
		v.traffic, v.peers = rapid.Bool().Draw(t, "traffic"), rapid.Bool().Draw(t, "peers")
		for range rapid.IntRange(1, 20).Draw(t, "waits") {
			for _, v.starved = range []bool{true, false} {
				length := time.Duration(rapid.IntRange(1, int(RoundLimit/step)).Draw(t, "samples")) * step
				if got, took := v.run(d, step, length, Suspect); got.Kind == Suspect {
					t.Fatalf("starved %v: suspected %+v after %v", v.starved, got, took)
				}
			}
		}
		v.starved, v.stopped, v.traffic = true, true, true
		v.run(d, step, time.Second, Nothing)
		v.starved = false
		if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || took > bound {
			t.Errorf("%+v after %v, want a suspicion within %v", got, took, bound)
		}
	})
}

// A pump that never completes its round hangs in a verb.
func TestR08HangingPumpIsSuspected(t *testing.T) {
	v, d := newDevice(), New()
	v.run(d, step, time.Second, Nothing)
	v.starved = true
	if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || took > bound+RoundLimit {
		t.Errorf("%+v after %v, want a suspicion within %v", got, took, bound+RoundLimit)
	}
}

// The detector starts over when the port comes back, and finds a later fault in time.
func TestR08PortComesBack(t *testing.T) {
	v, d := newDevice(), New()
	v.traffic, v.stopped, v.port = true, true, hca.PortDown
	v.run(d, step, time.Minute, Nothing)
	v.port, v.stopped = hca.PortActive, false
	if got, _ := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect {
		t.Fatalf("suspected %+v", got)
	}
	v.stopped = true
	if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || got.Unanswered || took > bound {
		t.Errorf("%+v after %v, want a suspicion of the send queue within %v", got, took, bound)
	}
}

// Sends that do not complete are detected even while messages keep arriving.
func TestR08SendsStopButReceivesContinue(t *testing.T) {
	v, d := newDevice(), New()
	v.peers, v.traffic, v.stopped = true, true, true
	if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || got.Unanswered || took > bound+step {
		t.Errorf("%+v after %v, want a suspicion of the send queue within %v", got, took, bound+step)
	}
}

// The detector starts from scratch for a rebuilt queue pair, and does not mistake an old
// probe for a new one.
func TestR08Restart(t *testing.T) {
	v, d := newDevice(), New()
	v.deaf = true
	if got, _ := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect {
		t.Fatal("the first fault was not suspected")
	}
	number := d.probe.number
	d.Restart()
	v.deaf = false
	if got, _ := v.run(d, step, time.Minute, Suspect); got.Kind == Suspect || d.probe.number <= number {
		t.Errorf("%+v, probe %d after %d, want no suspicion, and a new probe", got, d.probe.number, number)
	}
	v.deaf = true
	if got, _ := v.run(d, step, time.Minute, Suspect); !got.Unanswered {
		t.Errorf("%+v, want a suspicion of the receive queue", got)
	}
}

// A healthy device is never suspected, and a fault is detected within the bound,
// regardless of earlier events.
func TestR08Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, d := newDevice(), New()
		for range rapid.IntRange(0, 20).Draw(t, "phases") {
			v.traffic, v.peers = rapid.Bool().Draw(t, "traffic"), rapid.Bool().Draw(t, "peers")
			v.port = rapid.SampledFrom([]hca.PortState{hca.PortActive, hca.PortDown, hca.PortInit}).Draw(t, "port")
			v.rung = rapid.Bool().Draw(t, "rung")
			v.blocked = rapid.Bool().Draw(t, "blocked")
			v.rate = rapid.SampledFrom([]float64{0, 8, 600}).Draw(t, "rate")
			v.backlog = rapid.SampledFrom([]int{0, 1, 512}).Draw(t, "backlog")
			v.stopped = !v.sample().working() && rapid.Bool().Draw(t, "stopped")
			length := time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond
			every := rapid.SampledFrom([]time.Duration{step, step / 2, 3 * step, time.Second}).Draw(t, "step")
			if got, _ := v.run(d, every, length, Suspect); got.Kind == Suspect {
				t.Fatalf("a healthy device is suspected: %+v", got)
			}
			v.stopped = false
		}
		v.port, v.rung, v.traffic = hca.PortActive, false, true
		v.blocked, v.rate, v.backlog = false, 0, 0
		v.run(d, step, time.Second, Nothing)
		fault := rapid.SampledFrom([]*bool{&v.stopped, &v.deaf, &v.full, &v.refuses}).Draw(t, "fault")
		*fault = true
		if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || took > bound {
			t.Fatalf("%+v after %v, want a suspicion within %v", got, took, bound)
		}
	})
}

func TestStepAllocs(t *testing.T) {
	v, d := newDevice(), New()
	s := v.sample()
	if n := testing.AllocsPerRun(100, func() { v.now = v.now.Add(step); d.Step(v.now, s) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
