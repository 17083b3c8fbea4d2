package freeze

import (
	"testing"
	"time"
)

// suspicions runs for a time and counts the suspicions that events are lost. It fails on any other.
func (v *device) suspicions(t *testing.T, d *Detector, length time.Duration) (n int) {
	t.Helper()
	for end := v.now.Add(length); v.now.Before(end); {
		got, _ := v.run(d, step, end.Sub(v.now), Suspect)
		if got.Kind == Suspect && !got.EventsLost {
			t.Fatalf("suspected %+v", got)
		}
		if got.EventsLost {
			n++
		}
	}
	return n
}

// Completions that only polls find are suspected within seconds, under each kind of traffic, as long as
// it lasts, and never as a freeze (R08).
func TestR08LostEvents(t *testing.T) {
	for load := range 4 {
		v, d := newDevice(), New()
		v.traffic, v.peers = load&1 != 0, load&2 != 0
		if n := v.suspicions(t, d, time.Minute); n != 0 || d.EventsLost() || d.FoundByPoll() != 0 {
			t.Fatalf("load %d: %d suspicions, lost %v, %d found by polls", load, n, d.EventsLost(), d.FoundByPoll())
		}
		v.eventless = true
		got, took := v.run(d, step, time.Minute, Suspect)
		t.Logf("load %d: suspected after %v", load, took)
		if !got.EventsLost || !d.EventsLost() || took > 2*time.Second || d.FoundByPoll() != lostEvents {
			t.Errorf("load %d: %+v after %v, %d found by polls", load, got, took, d.FoundByPoll())
		}
		if d.Restart(); !d.EventsLost() || d.FoundByPoll() != lostEvents {
			t.Errorf("load %d: forgotten by Restart", load)
		}
		if n := v.suspicions(t, d, time.Minute); n < 30 {
			t.Errorf("load %d: %d more suspicions in a minute", load, n)
		}
		v.eventless = false
		v.find()
		if n := v.suspicions(t, d, time.Minute); n > 1 || d.EventsLost() {
			t.Errorf("load %d: %d suspicions after the end, lost %v", load, n, d.EventsLost())
		}
	}
}

// A freeze is found as fast as ever while events are lost.
func TestR08FreezeWhileEventsAreLost(t *testing.T) {
	v, d := newDevice(), New()
	v.eventless, v.traffic = true, true
	v.suspicions(t, d, 10*time.Second)
	v.stopped = true
	if got, took := v.run(d, step, time.Minute, Suspect); got.Kind != Suspect || got.EventsLost || took > bound {
		t.Errorf("%+v after %v", got, took)
	}
}

// Pumps that wait for a processor find their completions late, but not because events are lost: not with
// a stall of any length between two probes, nor if the samples are late as well (R08).
func TestR08StarvedPumpsLoseNoEvents(t *testing.T) {
	for starved := step; starved < 4*time.Second; starved += step {
		v, d := newDevice(), New()
		for range 100 {
			v.starved, v.eventless = true, true // what arrives is not found
			v.suspicions(t, d, starved)
			v.starved, v.eventless = false, false
			v.find()
			if n := v.suspicions(t, d, 400*time.Millisecond); n != 0 || d.EventsLost() {
				t.Fatalf("starved for %v at a time: %d suspicions", starved, n)
			}
		}
	}
	v, d := newDevice(), New()
	v.eventless = true
	if got, after := v.run(d, 2*step, time.Minute, Suspect); got.Kind == Suspect {
		t.Errorf("late samples: %+v after %v", got, after)
	}
}
