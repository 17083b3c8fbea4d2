package qprecovery

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// Takes reports whether an interface will act on an order: exactly when the ladder does
// not absorb it, whatever happened before.
func TestR29InterfaceTakesOrders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWatcher()
		for range rapid.IntRange(1, 50).Draw(t, "events") {
			check(t, w.do(w.anyEvent(t)))
			check(t, w.advance(rapid.SampledFrom(delays).Draw(t, "delay")))
			order := Order{rapid.SampledFrom([]Rung{RungResetQP, RungRebuildCQ, RungDevice}).Draw(t, "rung")}
			takes, state, before := w.l.Takes(order), w.l.State(), w.l.Counts().Absorbed
			check(t, w.do(order))
			if absorbed := w.l.Counts().Absorbed > before; absorbed == takes {
				t.Fatalf("order of %v in %v: taken %v, absorbed %v", order.Rung, state, takes, absorbed)
			}
		}
	})
}

// Takes of a device reports the same, in each of its states.
func TestR29DeviceTakesOrders(t *testing.T) {
	id := Identity{NodeGUID: hca.GUID{1}}
	for s := range numDeviceState {
		for _, ev := range []DeviceEvent{Order{RungDevice}, Recover{}} {
			d := NewDeviceLadder(epoch, DeviceConfig{Identity: id})
			d.become(epoch, s, ReasonNone)
			if s == DeviceWaiting {
				d.wait.until = epoch.Add(time.Hour)
			}
			takes, state := d.Takes(ev), d.State()
			d.Step(epoch, ev, nil)
			if absorbed := d.Counts().Absorbed > 0; absorbed == takes {
				t.Errorf("%T in %v: taken %v, absorbed %v", ev, state, takes, absorbed)
			}
		}
	}
	if NewDeviceLadder(epoch, DeviceConfig{Identity: id}).Takes(Order{RungResetQP}) {
		t.Error("an order that is not for a device is taken")
	}
}
