package freeze

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

const step = DefaultInterval

func TestR08Bound(t *testing.T) {
	if got := (Config{}).Bound(); got > time.Second || got != 900*time.Millisecond {
		t.Errorf("%v", got)
	}
	for _, c := range []struct {
		conf Config
		want time.Duration
	}{
		{Config{SendLimit: 3 * time.Second}, 3050 * time.Millisecond},
		{Config{Probes: 3, Interval: 10 * time.Millisecond}, 1040 * time.Millisecond},
	} {
		if got := c.conf.Bound(); got != c.want {
			t.Errorf("%+v: %v, want %v", c.conf, got, c.want)
		}
	}
}

// Each fault, under each traffic, is named and found within the bound.
func TestR08Frozen(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(*device)
		need  bool // the host's own traffic shows it
		want  Reason
	}{
		{"completions stop", func(v *device) {
			v.stopped = true
			v.post(0) // where nothing is sent, not even probes, nothing stops
		}, false, CompletionsStopped},
		{"deaf receive", func(v *device) { v.deaf = true }, false, DeafReceive},
		{"swallowed send", func(v *device) { v.swallow = true }, true, SendTimeout},
	} {
		for load := range 4 {
			v, d := newDevice(), New(Config{})
			v.traffic, v.peers = load&1 != 0 || c.need, load&2 != 0
			v.run(d, step, 5*time.Second, Nothing)
			c.fault(v)
			got, took := v.run(d, step, 10*time.Second, Frozen)
			t.Logf("%s, sending %v, hearing %v: %v after %v", c.name, v.traffic, v.peers, got.Reason, took)
			since := v.now.Sub(got.Since)
			if got.Reason != c.want || took > (Config{}).Bound() || since > took+step || since <= 0 {
				t.Errorf("%s: %+v after %v, want %v within %v", c.name, got, took, c.want, (Config{}).Bound())
			}
			if again, _ := v.run(d, step, 5*time.Second, Frozen); again.Kind == Frozen {
				t.Errorf("%s: told twice", c.name)
			}
		}
	}
}

// What looks like a freeze and is none.
func TestR08NotFrozen(t *testing.T) {
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
	} {
		v, d := newDevice(), New(Config{})
		c.setup(v)
		if got, at := v.run(d, step, time.Minute, Frozen); got.Kind == Frozen {
			t.Errorf("%s: %+v after %v", c.name, got, at)
		}
	}
}

// An idle link is asked four times a second at most; a busy one never.
func TestR08Probes(t *testing.T) {
	v, d := newDevice(), New(Config{})
	v.run(d, step, 10*time.Second, Nothing)
	if v.probes < 20 || v.probes > 40 {
		t.Errorf("%d probes in 10 s on an idle link", v.probes)
	}
	v, d = newDevice(), New(Config{})
	v.traffic, v.peers = true, true
	if v.run(d, step, 10*time.Second, Nothing); v.probes != 0 {
		t.Errorf("%d probes on a busy link", v.probes)
	}
}

// After 10 s of being stopped, the daemon polls and then finds all well, though
// sends were old at the first sample.
func TestR08Stall(t *testing.T) {
	v, d := newDevice(), New(Config{})
	v.traffic = true
	v.run(d, step, time.Second, Nothing)
	v.stopped = true // nobody polled
	v.tick(10 * time.Second)
	if got := d.Step(v.now, v.sample()); got.Kind != Poll {
		t.Fatalf("%+v, want a poll", got)
	}
	v.stopped = false
	if got, _ := v.run(d, step, time.Minute, Frozen); got.Kind == Frozen {
		t.Errorf("%+v", got)
	}
	if v.tick(DefaultMaxGap); d.Step(v.now, v.sample()).Kind == Poll {
		t.Error("a sample that is late by less than the bound counts as a stall")
	}
}

// A port that comes back begins anew, and a fault after it is found in time.
func TestR08PortComesBack(t *testing.T) {
	v, d := newDevice(), New(Config{})
	v.traffic, v.stopped, v.port = true, true, hca.PortDown
	v.run(d, step, time.Minute, Nothing)
	v.port, v.stopped = hca.PortActive, false
	if got, _ := v.run(d, step, time.Minute, Frozen); got.Kind == Frozen {
		t.Fatalf("%+v", got)
	}
	v.stopped = true
	if got, took := v.run(d, step, time.Minute, Frozen); got.Reason != CompletionsStopped || took > (Config{}).Bound() {
		t.Errorf("%+v after %v", got, took)
	}
}

// Completions that stop are found though probes come back.
func TestR08StoppedButHearing(t *testing.T) {
	d, now := New(Config{}), epoch
	s := &Sample{Port: hca.PortActive, OldestPost: now}
	for range 40 {
		now = now.Add(step)
		got := d.Step(now, s)
		if got.Kind == SendProbe {
			s.Answered, s.Received = got.Probe, s.Received+1
		}
		if got.Kind == Frozen {
			if got.Reason != CompletionsStopped || now.Sub(epoch) > (Config{}).Bound()+step {
				t.Errorf("%+v after %v", got, now.Sub(epoch))
			}
			return
		}
	}
	t.Error("not found")
}

func TestR08Restart(t *testing.T) {
	v, d := newDevice(), New(Config{})
	v.deaf = true
	if got, _ := v.run(d, step, time.Minute, Frozen); got.Kind != Frozen {
		t.Fatal("not found")
	}
	number := d.probe.number
	d.Restart()
	v.deaf = false
	if got, _ := v.run(d, step, time.Minute, Frozen); got.Kind == Frozen || d.probe.number <= number {
		t.Errorf("%+v, probe %d after %d", got, d.probe.number, number)
	}
	v.deaf = true
	if got, _ := v.run(d, step, time.Minute, Frozen); got.Reason != DeafReceive {
		t.Errorf("%+v", got)
	}
}

// Whatever comes before, a healthy device is never frozen, and a fault is found
// within the bound.
func TestR08Property(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, d := newDevice(), New(Config{})
		for range rapid.IntRange(0, 20).Draw(t, "phases") {
			v.traffic, v.peers = rapid.Bool().Draw(t, "traffic"), rapid.Bool().Draw(t, "peers")
			v.port = rapid.SampledFrom([]hca.PortState{hca.PortActive, hca.PortDown, hca.PortInit}).Draw(t, "port")
			v.rung = rapid.Bool().Draw(t, "rung")
			v.stopped = !v.sample().working() && rapid.Bool().Draw(t, "stopped")
			length := time.Duration(rapid.IntRange(1, 5000).Draw(t, "ms")) * time.Millisecond
			every := rapid.SampledFrom([]time.Duration{step, step / 2, 3 * step, time.Second}).Draw(t, "step")
			if got, _ := v.run(d, every, length, Frozen); got.Kind == Frozen {
				t.Fatalf("a healthy device: %+v", got)
			}
			v.stopped = false
		}
		v.port, v.rung, v.traffic = hca.PortActive, false, true
		v.run(d, step, time.Second, Nothing)
		fault := rapid.SampledFrom([]*bool{&v.stopped, &v.deaf, &v.swallow}).Draw(t, "fault")
		*fault = true
		if got, took := v.run(d, step, time.Minute, Frozen); got.Kind != Frozen || took > (Config{}).Bound() {
			t.Fatalf("%+v after %v", got, took)
		}
	})
}

func TestNames(t *testing.T) {
	for r := range numReason {
		if r.String() == "" || r.String() == "unknown" {
			t.Errorf("reason %d has no name", r)
		}
	}
	if numReason.String() != "unknown" {
		t.Error(numReason.String())
	}
}

func TestStepAllocs(t *testing.T) {
	v, d := newDevice(), New(Config{})
	s := v.sample()
	if n := testing.AllocsPerRun(100, func() { v.now = v.now.Add(step); d.Step(v.now, s) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
