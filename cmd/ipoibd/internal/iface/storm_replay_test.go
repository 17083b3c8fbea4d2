package iface

import (
	"reflect"
	"slices"
	"testing"
	"time"

	"ipoibd/qprecovery"
)

// recorder is a ladder that records its inputs and outputs.
type recorder struct {
	*qprecovery.Ladder
	steps []step
}

type step struct {
	at      time.Time
	event   qprecovery.Event
	actions []qprecovery.Action
	to      qprecovery.State // entered, or kept
}

// recordLadder makes an interface that is not running yet use a recorder.
func recordLadder(f *Iface) *recorder {
	r := &recorder{Ladder: &qprecovery.Ladder{}}
	f.rec.ladder = r
	return r
}

func (r *recorder) Step(now time.Time, ev qprecovery.Event, out []qprecovery.Action) []qprecovery.Action {
	before := len(out)
	out = r.Ladder.Step(now, ev, out)
	r.steps = append(r.steps, step{now, ev, slices.Clone(out[before:]), r.State()})
	return out
}

// replay passes the same events to a fresh ladder, and fails unless its decisions are the same:
// they depend only on the events and their times.
func (r *recorder) replay(t *testing.T) {
	t.Helper()
	fresh := &qprecovery.Ladder{}
	for i, s := range r.steps {
		if got := fresh.Step(s.at, s.event, nil); !slices.EqualFunc(got, s.actions, equal) {
			t.Errorf("step %d, %T %+v: %+v, was %+v", i, s.event, s.event, got, s.actions)
			return
		}
	}
	if fresh.State() != r.State() || !reflect.DeepEqual(fresh.History(), r.History()) || fresh.Counts() != r.Counts() {
		t.Errorf("%s, %+v, was %s, %+v", fresh.State(), fresh.Counts(), r.State(), r.Counts())
	}
	t.Logf("%d steps decided alike", len(r.steps))
}

func equal(a, b qprecovery.Action) bool { return reflect.DeepEqual(a, b) }
