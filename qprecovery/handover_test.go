package qprecovery

import (
	"slices"
	"testing"
	"time"
)

// What another process hands over neither extends a pause or a wait beyond its own bound, nor fills a budget
// beyond its allowance.
func TestHandedIsBounded(t *testing.T) {
	var b HandedBudget
	b.Health = -time.Hour
	for r := range b.Uses {
		b.Uses[r] = slices.Repeat([]time.Duration{time.Hour}, 1000)
	}
	l := InheritLadder(epoch, Handed{State: Healthy, Budget: b, Pause: time.Hour, Frozen: true, FrozenAt: time.Hour})
	if l.State() != Idle || l.pause > pauseMost {
		t.Errorf("state %v, pause %v", l.State(), l.pause)
	}
	for r, marks := range l.budget.marks {
		if len(marks) > rungs[r].uses || len(marks) > 0 && marks[0] > l.budget.health {
			t.Errorf("%v: %v", Rung(r), marks)
		}
	}
	for _, s := range []DeviceState{DeviceWaiting, DevicePausing} {
		d := InheritDeviceLadder(epoch, DeviceConfig{}, HandedDevice{
			State: s, Identity: same, NextTry: time.Hour, GivesUp: 24 * time.Hour, Pause: time.Hour, Owed: time.Hour,
			Record: &Record{Steps: make([]Step, 1000), End: epoch},
		})
		if next, _ := d.NextDeadline(); next.After(epoch.Add(resetPauseMost)) || d.wait.due.After(epoch.Add(DefaultGiveUpAfter)) {
			t.Errorf("%v: next try %v, gives up %v", s, next, d.wait.due)
		}
		if r := d.history.list(); len(r) != 1 || len(r[0].Steps) > MaxSteps || !r[0].End.IsZero() {
			t.Errorf("%v: history %+v", s, r)
		}
	}
}
