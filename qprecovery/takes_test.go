package qprecovery

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// Takes returns true exactly if the ladder does not absorb the order, in every state that
// random events lead to.
func TestR29TakesPredictsTheEffectOfAnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWatcher()
		for range rapid.IntRange(1, 50).Draw(t, "events") {
			check(t, w.do(w.anyEvent(t)))
			check(t, w.advance(rapid.SampledFrom(delays).Draw(t, "delay")))
			order := Order{Rung: rapid.SampledFrom([]Rung{RungResetQP, RungRebuildCQ}).Draw(t, "rung")}
			takes, state, before := w.l.Takes(order), w.l.State(), w.l.Counts().Absorbed
			check(t, w.do(order))
			if absorbed := w.l.Counts().Absorbed > before; absorbed == takes {
				t.Fatalf("order of %v in %v: Takes returned %v, absorbed %v", order.Rung, state, takes, absorbed)
			}
		}
	})
}

// A device answers each command in each of its states.
func TestR29DeviceAnswersCommands(t *testing.T) {
	want := map[DeviceState][2]Result{ // of DoReset and DoRecover
		DeviceStarting:  {ResultDone, ResultDone},
		DeviceHealthy:   {ResultDone, ResultOpen},
		DeviceDropping:  {ResultDone, ResultUnderWay},
		DevicePausing:   {ResultDone, ResultDone},
		DeviceOpening:   {ResultDone, ResultUnderWay},
		DeviceWaiting:   {ResultDone, ResultDone},
		DeviceGivenUp:   {ResultDone, ResultDone},
		DeviceSuspended: {ResultSuspended, ResultSuspended},
	}
	for s := range numDeviceState {
		for _, do := range []Do{DoReset, DoRecover} {
			d := NewDeviceLadder(epoch, DeviceConfig{Join: new(scripted).join})
			d.list.devices = []Identity{same}
			d.list.born, d.suspension.on = s != DeviceStarting, s == DeviceSuspended
			d.become(&deviceRow{to: s, rung: RungDevice}, ReasonNone)
			out := d.Step(epoch, Command{7, do}, nil)
			if !slices.Contains(out, DeviceAction(Answer{7, want[s][do]})) {
				t.Errorf("command %d in %v: %v, want answer %d", do, s, out, want[s][do])
			}
		}
	}
}
