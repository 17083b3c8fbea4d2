package qprecovery

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// host is a device with two interfaces on it, and a shell that carries words
// between the ladders and does what they ask: after a millisecond, with a result
// that fault decides.
type host struct {
	t     *rapid.T
	now   time.Time
	dev   *deviceWatcher
	ifs   []*watcher
	fault func() bool
	todo  []func() // answers under way
	drop  uint64   // the device's Drop, which waits for the interfaces; 0: none
}

func newHost(t *rapid.T, fault func() bool) *host {
	h := &host{t: t, now: epoch, dev: newDeviceWatcher(DeviceConfig{}), fault: fault}
	for range 2 {
		w := newWatcher()
		h.ifs = append(h.ifs, w)
		h.tell(w, Attached{1})
	}
	return h
}

func (h *host) class() Class {
	if h.fault() {
		return ClassNoResource
	}
	return ClassSuccess
}

// tell gives an interface an event and notes what it asks for.
func (h *host) tell(w *watcher, ev Event) {
	w.now = h.now
	op, asked := w.op, w.asked
	check(h.t, w.do(ev))
	if w.op != op && w.op != 0 {
		d := Done{Op: w.op, Class: h.class(), State: hca.QPErr}
		h.todo = append(h.todo, func() { h.tell(w, d) })
	}
	if w.asked != asked {
		h.todo = append(h.todo, func() { h.device(Asked{Reason: w.l.Reason()}) })
	}
}

// device gives the device's ladder an event and does what it asks for.
func (h *host) device(ev DeviceEvent) {
	h.dev.now = h.now
	op, before := h.dev.op, h.dev.d.State()
	check(h.t, h.dev.do(ev))
	after := h.dev.d.State()
	switch {
	case h.dev.op == op || h.dev.op == 0:
	case after == DeviceDropping || after == DeviceReleasing:
		h.drop = h.dev.op
		h.everybody(DeviceDown{})
	default:
		d := Done{Op: h.dev.op, Class: h.class()}
		h.todo = append(h.todo, func() { h.device(d) })
	}
	h.word(before, after)
}

// word tells the interfaces of the end, and of one that came at once again.
func (h *host) word(before, after DeviceState) {
	switch {
	case before == after:
	case after == DeviceHealthy:
		h.everybody(DeviceUp{})
	case after == DeviceGivenUp:
		h.everybody(DeviceGaveUp{})
	}
}

func (h *host) everybody(ev Event) {
	for _, w := range h.ifs {
		h.tell(w, ev)
	}
}

// ready reports whether every interface has let go.
func (h *host) ready() bool {
	for _, w := range h.ifs {
		if s := w.l.State(); s != Detached && s != GivenUp {
			return false
		}
	}
	return true
}

// tick lets a millisecond pass, or the time to the next deadline when nothing is
// under way.
func (h *host) tick() {
	h.now = h.now.Add(time.Millisecond)
	if len(h.todo) == 0 && h.drop == 0 {
		h.now = h.nextDeadline()
	}
	todo := h.todo
	h.todo = nil
	for _, answer := range todo {
		answer()
	}
	if h.drop != 0 && h.ready() {
		d := Done{Op: h.drop, Class: h.class()}
		h.drop = 0
		h.device(d)
	}
	h.everybody(Tick{})
	h.device(Tick{})
}

func (h *host) nextDeadline() time.Time {
	var next time.Time
	for _, w := range h.ifs {
		at, _ := w.l.NextDeadline()
		next = earlier(next, at)
	}
	at, _ := h.dev.d.NextDeadline()
	if next = earlier(next, at); next.IsZero() || next.Before(h.now) {
		return h.now
	}
	return next
}

func (h *host) healthy() bool {
	ok := h.dev.d.State() == DeviceHealthy
	for _, w := range h.ifs {
		ok = ok && w.l.State() == Healthy
	}
	return ok
}

// harm does something to an interface or to the device.
func (h *host) harm() {
	w := rapid.SampledFrom(h.ifs).Draw(h.t, "interface")
	switch rapid.IntRange(0, 5).Draw(h.t, "harm") {
	case 0, 1:
		h.tell(w, Fault{Gen: w.l.gens.last, Class: Class(rapid.IntRange(0, int(NumClass)-1).Draw(h.t, "class"))})
	case 2:
		h.tell(w, Suspected{Gen: w.l.gens.last})
	case 3:
		h.device(Fault{Gen: h.dev.d.Gen(), Class: ClassDeviceError})
	case 4:
		h.device(Removed{})
	default:
		h.device(Arrived{same})
	}
}

// TestR06Together: a device with two interfaces under random faults, verbs
// failing at random. Once that ends all are healthy: within the longest pauses,
// or, after a give-up, by the operator.
func TestR06Together(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bad := true
		h := newHost(t, func() bool { return bad && rapid.IntRange(0, 3).Draw(t, "fails") == 0 })
		for range rapid.IntRange(1, 60).Draw(t, "faults") {
			h.harm()
			for range rapid.IntRange(0, 6).Draw(t, "ticks") {
				h.tick()
			}
		}
		bad = false
		h.device(Arrived{same})
		h.device(Recover{})
		end := h.now.Add(resetPauseMost + pauseMost + DefaultGrace + time.Minute)
		for n := 0; !h.healthy() && !h.now.After(end) && n < 10_000; n++ {
			h.tick()
		}
		if !h.healthy() {
			t.Fatalf("%v, %v, %v", h.dev.d.State(), h.ifs[0].l.State(), h.ifs[1].l.State())
		}
	})
}
