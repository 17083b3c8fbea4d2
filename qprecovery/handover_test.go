package qprecovery

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What another process hands over neither extends a pause or a wait beyond its own bound, nor fills a budget
// beyond its allowance.
func TestHandedIsBounded(t *testing.T) {
	b := HandedBudget{Health: -time.Hour, Uses: map[string][]time.Duration{}}
	for r := range NumRung {
		b.Uses[r.String()] = slices.Repeat([]time.Duration{time.Hour}, 1000)
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

// A version that has more states, rungs and reasons hands over to this one: what it names becomes the least of each
// kind, and a device in a state that is unknown here is opened as at the first start.
func TestNamesOfAnotherVersion(t *testing.T) {
	var d HandedDevice
	text := `{"state":"dreaming","reason":"moonlight","rung":"rebuild_moon","hold":"loosely",
		"record":{"Rung":"rebuild_moon","Reason":"moonlight","Steps":[{"Rung":"rebuild_moon","Reason":"moonlight"}]},
		"budget":{"uses_ns":{"rebuild_moon":[1]}}}`
	if err := json.Unmarshal([]byte(text), &d); err != nil {
		t.Fatal(err)
	}
	if d.State != DeviceStarting || d.Reason != ReasonNone || d.Rung != RungNone || d.Hold != holdHeld || d.Record == nil {
		t.Errorf("a device: %+v", d)
	}
	if got := InheritDeviceLadder(time.Time{}, DeviceConfig{}, d).Status().State; got != DeviceStarting {
		t.Errorf("the device is %v", got)
	}
	var i Handed
	if err := json.Unmarshal([]byte(`{"state":"dreaming","reason":"moonlight"}`), &i); err != nil || i.State != Idle {
		t.Errorf("an interface: %+v, %v", i, err)
	}
}

// handOver replaces all ladders by those of another process, unless one refuses.
func (h *host) handOver(t *testing.T) bool {
	device, ok := h.dev.d.HandOver(h.now)
	if !ok {
		return false
	}
	var ifs []*watcher
	for _, w := range h.ifs {
		one, ok := w.l.HandOver(h.now)
		if !ok {
			return false
		}
		next := newWatcher()
		next.l, next.now, next.rung = InheritLadder(h.now, copyOf(t, one)), h.now, w.rung
		next.traffic = next.l.traffic.state
		ifs = append(ifs, next)
	}
	h.ifs, h.todo, h.hung = ifs, nil, 0
	for i := range ifs {
		h.seen[i], h.holds[i] = 0, false
	}
	next := newDeviceWatcher(DeviceConfig{})
	next.d, next.now, next.rung = InheritDeviceLadder(h.now, DeviceConfig{Join: next.agrees.join}, copyOf(t, device)), h.now, device.Rung
	if next.waits = h.dev.waits; device.State != DeviceWaiting {
		next.waits = time.Time{}
	}
	h.dev = next
	for _, w := range h.ifs {
		if w.l.Device() == ViewUp {
			h.apply(w, DeviceDown{}) // it is not open yet
		}
	}
	h.device(Listed{Devices: h.list})
	return true
}

// attach starts the interfaces that are idle, as the shell does.
func (h *host) attach() {
	for i, w := range h.ifs {
		if w.l.State() == Idle && w.l.Device() == ViewUp && h.dev.d.State() == DeviceHealthy {
			h.seen[i], h.holds[i] = h.dev.gen, true
			h.apply(w, Attached{w.l.NextGen()})
		}
	}
}

// A device and its two interfaces suffer faults, and one process after the other continues them, whenever
// that is not refused. Once the faults end, all become healthy, in the same time as without hand-overs (R26).
func TestR26HandedOverTogether(t *testing.T) {
	done, refused := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		bad := true
		h := newHost(rt, func() bool { return bad && rapid.IntRange(0, 3).Draw(rt, "fails") == 0 })
		for range rapid.IntRange(1, 60).Draw(rt, "faults") {
			h.injectFault()
			for range rapid.IntRange(0, 6).Draw(rt, "ticks") {
				h.tick()
				h.attach()
			}
			switch {
			case rapid.IntRange(0, 3).Draw(rt, "hand over") > 0:
			case h.handOver(t):
				done++
			default:
				refused++
			}
		}
		bad = false
		h.list = []Identity{same}
		h.device(Listed{Devices: h.list})
		if h.dev.d.State() == DeviceGivenUp {
			h.device(Command{1, DoRecover})
		}
		end := h.now.Add(resetPauseMost + pauseMost + DefaultGrace + time.Minute)
		for n := 0; !h.healthy() && !h.now.After(end) && n < 10_000; n++ {
			h.tick()
			h.attach()
		}
		if !h.healthy() {
			rt.Fatalf("device %v, interfaces %v and %v, want all healthy", h.dev.d.State(), h.ifs[0].l.State(), h.ifs[1].l.State())
		}
	})
	t.Logf("%d hand-overs, %d refused", done, refused)
}
