package freeze

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// follow is run with samples when the detector asks for them: at its deadlines and, while it rests, as
// soon as the device has done anything. It returns the number of samples as well.
func (v *device) follow(d *Detector, length time.Duration, until Kind) (got Decision, took time.Duration, samples int) {
	const tick = step / 5
	for began := v.now; v.now.Sub(began) < length; {
		before := v.sample()
		v.tick(tick)
		after := v.sample()
		moved := after.Completed != before.Completed || after.Received != before.Received || after.Waiting != before.Waiting || after.Refused != before.Refused
		at, any := d.NextDeadline(true)
		if woken := moved && d.Resting(); any && v.now.Before(at) && !woken {
			continue
		}
		samples++
		got = v.obey(d.Step(v.now, after))
		if got.Kind == until && until != Nothing {
			return got, v.now.Sub(began), samples
		}
	}
	return Decision{}, length, samples
}

// An idle link costs at most three samples and one probe per Rest: one that requests the probe, one
// that sees the answer, and one on the way.
func TestIdleLinkRests(t *testing.T) {
	v, d := newDevice(), New()
	v.follow(d, Rest+time.Second, Nothing) // not while it takes the sample of a multiple of Rest
	if !d.Resting() {
		t.Fatal("the detector does not rest after 6 s")
	}
	v.probes = 0
	_, _, samples := v.follow(d, time.Minute, Nothing)
	t.Logf("%d samples and %d probes in an idle minute", samples, v.probes)
	if most := int(time.Minute / Rest); v.probes > most || v.probes < most-1 || samples > 3*most {
		t.Errorf("%d samples and %d probes, want %d probes", samples, v.probes, most)
	}
	for _, c := range []struct {
		name string
		busy *bool
	}{
		{"a send", &v.traffic},
		{"a receive", &v.peers},
	} {
		*c.busy = true
		v.follow(d, step/5, Nothing)
		*c.busy = false
		if d.Resting() {
			t.Errorf("the detector still rests after %s", c.name)
		}
		if v.follow(d, Rest, Nothing); !d.Resting() {
			t.Errorf("the detector does not rest 5 s after %s", c.name)
		}
	}
}

// A fault that begins while the detector rests is suspected within the bound from the first send, or
// at the latest a Rest later.
func TestR08SuspectedAtRest(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(*device)
	}{
		{"completions stop", func(v *device) { v.stopped = true }},
		{"deaf receive", func(v *device) { v.deaf = true }},
		{"full queue with nothing outstanding", func(v *device) { v.full = true }},
		{"every post refused", func(v *device) { v.refuses = true }},
	} {
		for _, sends := range []bool{false, true} {
			v, d := newDevice(), New()
			v.follow(d, 7*time.Second, Nothing)
			if !d.Resting() {
				t.Fatal("the detector does not rest")
			}
			c.fault(v)
			v.traffic = sends
			limit := bound
			if !sends {
				limit += Rest
			}
			got, took, _ := v.follow(d, time.Minute, Suspect)
			t.Logf("%s, sends %v: suspected after %v", c.name, sends, took)
			if got.Kind != Suspect || got.EventsLost || took > limit {
				t.Errorf("%s, sends %v: %+v after %v, want it within %v", c.name, sends, got, took, limit)
			}
		}
	}
}

// Events that are lost while the detector rests end the rest, and are suspected.
func TestR08LostEventsAtRest(t *testing.T) {
	v, d := newDevice(), New()
	v.follow(d, 7*time.Second, Nothing)
	v.eventless = true
	got, took, _ := v.follow(d, time.Minute, Suspect)
	if want := Rest + lostEvents*bound; !got.EventsLost || took > want {
		t.Errorf("%+v after %v, want lost events within %v", got, took, want)
	}
}

// The rest neither hides a stall of the daemon nor looks like one.
func TestR08StallAtRest(t *testing.T) {
	v, d := newDevice(), New()
	v.follow(d, 7*time.Second, Nothing)
	at, _ := d.NextDeadline(true)
	v.now = at.Add(MaxGap - Interval)
	if got := d.Step(v.now, v.sample()); got.Kind != SendProbe {
		t.Errorf("%+v by a sample that was hardly late, want a probe", got)
	}
	v, d = newDevice(), New()
	v.follow(d, 7*time.Second, Nothing)
	at, _ = d.NextDeadline(true)
	v.now = at.Add(MaxGap)
	if got := d.Step(v.now, v.sample()); got.Kind != Poll || d.Resting() {
		t.Errorf("%+v after a stall, resting %v, want a poll, and no rest", got, d.Resting())
	}
}

// A healthy device is never suspected, however traffic and rest alternate, and a fault is suspected
// within the bound from the first send after it.
func TestR08PropertyAtRest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v, d := newDevice(), New()
		for range rapid.IntRange(1, 12).Draw(t, "phases") {
			v.traffic, v.peers = rapid.Bool().Draw(t, "traffic"), rapid.Bool().Draw(t, "peers")
			for _, length := range []int{rapid.IntRange(1, 500).Draw(t, "busy ms"), rapid.IntRange(1, 20_000).Draw(t, "idle ms")} {
				if got, _, _ := v.follow(d, time.Duration(length)*time.Millisecond, Suspect); got.Kind == Suspect {
					t.Fatalf("a healthy device is suspected: %+v", got)
				}
				v.traffic, v.peers = false, false
			}
		}
		*rapid.SampledFrom([]*bool{&v.stopped, &v.deaf, &v.full, &v.refuses}).Draw(t, "fault") = true
		silent := time.Duration(rapid.IntRange(0, 20_000).Draw(t, "silent ms")) * time.Millisecond
		if got, took, _ := v.follow(d, silent, Suspect); got.Kind == Suspect {
			return
		} else if took > Rest+bound+step {
			t.Fatalf("no suspicion for %v", took)
		}
		v.traffic = true
		limit := bound + step // the last receive was seen up to a step late
		if got, took, _ := v.follow(d, time.Minute, Suspect); got.Kind != Suspect || took > limit {
			t.Fatalf("%+v after %v, want a suspicion within %v", got, took, limit)
		}
	})
}
