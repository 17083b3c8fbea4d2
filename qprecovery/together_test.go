package qprecovery

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// host is a device with two interfaces, and a shell that passes events between the ladders
// and executes their actions after a millisecond, with a result determined by fault.
type host struct {
	t      *rapid.T
	now    time.Time
	dev    *deviceWatcher
	ifs    []*watcher
	fault  func() bool
	todo   []func() // pending answers
	list   []Identity
	resets uint64
}

func newHost(t *rapid.T, fault func() bool) *host {
	h := &host{t: t, now: epoch, dev: newDeviceWatcher(DeviceConfig{}), fault: fault, list: []Identity{same}}
	h.device(Listed{Devices: h.list})
	h.device(Opened{Op: h.dev.opening, Identity: same})
	for range 2 {
		w := newWatcher()
		h.ifs = append(h.ifs, w)
		h.apply(w, Attached{1})
	}
	return h
}

func (h *host) class() Class {
	if h.fault() {
		return ClassNoResource
	}
	return ClassSuccess
}

// apply applies an event to an interface and notes its requests.
func (h *host) apply(w *watcher, ev Event) {
	w.now = h.now
	op, asked := w.op, w.asked
	check(h.t, w.do(ev))
	if w.op != op && w.op != 0 {
		d := Done{Op: w.op, Class: h.class(), State: hca.QPErr}
		h.todo = append(h.todo, func() { h.apply(w, d) })
	}
	if w.asked != asked {
		h.todo = append(h.todo, func() { h.device(Asked{w.l.Reason(), h.dev.d.gen}) })
	}
}

// device applies an event to the device's ladder, and reports changes of its
// state to the interfaces.
func (h *host) device(ev DeviceEvent) {
	h.dev.now = h.now
	before := h.dev.d.State()
	check(h.t, h.dev.do(ev))
	after := h.dev.d.State()
	if before == DeviceHealthy && after != before {
		h.applyAll(DeviceDown{})
	}
	h.reportDevice(before, after)
}

// answerDevice gives the device's ladder one answer that it waits for. It returns false if
// the ladder waits for none.
func (h *host) answerDevice() bool {
	d, reset := h.dev.d, &h.dev.d.reset
	switch {
	case h.dev.opening != 0:
		h.device(Opened{Op: h.dev.opening, Class: h.class(), Identity: same})
	case h.dev.closing && h.ready():
		h.device(Closed{h.dev.gen})
	case h.dev.refresh != 0:
		h.device(Listed{Op: h.dev.refresh, Devices: h.list})
	case reset.pending != 0 && reset.released:
		outcome := ResetDone
		if h.fault() {
			outcome = ResetOutcome(rapid.IntRange(1, int(numResetOutcome)-1).Draw(h.t, "outcome"))
		}
		h.device(ResetEnded{reset.pending, outcome})
	case d.State() == DeviceDropping && reset.wanted && reset.pending == 0 && reset.outcome == ResetUnknown:
		h.resets++
		h.device(ResetPending{h.resets})
	default:
		return false
	}
	return true
}

// reportDevice reports to the interfaces that the device is back or was given up.
func (h *host) reportDevice(before, after DeviceState) {
	switch {
	case before == after:
	case after == DeviceHealthy:
		h.applyAll(DeviceUp{})
	case after == DeviceGivenUp:
		h.applyAll(DeviceGaveUp{})
	}
}

func (h *host) applyAll(ev Event) {
	for _, w := range h.ifs {
		h.apply(w, ev)
	}
}

// ready reports whether every interface has released the device.
func (h *host) ready() bool {
	for _, w := range h.ifs {
		if s := w.l.State(); s != Idle && s != Detached && s != GivenUp {
			return false
		}
	}
	return true
}

// tick advances the time by a millisecond, or to the next deadline if no answer
// is pending.
func (h *host) tick() {
	h.now = h.now.Add(time.Millisecond)
	todo := h.todo
	h.todo = nil
	for _, answer := range todo {
		answer()
	}
	if !h.answerDevice() && len(h.todo) == 0 && len(todo) == 0 {
		h.now = h.nextDeadline()
	}
	h.applyAll(Tick{})
	h.device(Tick{})
}

func (h *host) nextDeadline() time.Time {
	var next time.Time
	for _, w := range h.ifs {
		at, _ := w.l.NextDeadline()
		next = Earlier(next, at)
	}
	at, _ := h.dev.d.NextDeadline()
	if next = Earlier(next, at); next.IsZero() || next.Before(h.now) {
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

// injectFault applies a random fault to an interface or to the device.
func (h *host) injectFault() {
	w := rapid.SampledFrom(h.ifs).Draw(h.t, "interface")
	switch rapid.IntRange(0, 5).Draw(h.t, "harm") {
	case 0, 1:
		h.apply(w, Fault{Gen: w.l.gens.last, Class: Class(rapid.IntRange(0, int(NumClass)-1).Draw(h.t, "class"))})
	case 2:
		h.apply(w, Suspected{Gen: w.l.gens.last})
	case 3:
		h.device(Fault{Gen: h.dev.d.gen, Class: ClassDeviceError})
	case 4:
		h.list = nil
		h.device(Listed{})
	default:
		h.list = []Identity{same}
		h.device(Listed{Devices: h.list})
	}
}

// TestR06Together: a device and its two interfaces suffer random faults and randomly failing
// verbs. Once these end, all become healthy: within the longest pauses or, after a give-up,
// by a command.
func TestR06Together(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bad := true
		h := newHost(t, func() bool { return bad && rapid.IntRange(0, 3).Draw(t, "fails") == 0 })
		for range rapid.IntRange(1, 60).Draw(t, "faults") {
			h.injectFault()
			for range rapid.IntRange(0, 6).Draw(t, "ticks") {
				h.tick()
			}
		}
		bad = false
		h.list = []Identity{same}
		h.device(Listed{Devices: h.list})
		h.device(Command{1, DoRecover})
		end := h.now.Add(resetPauseMost + pauseMost + DefaultGrace + time.Minute)
		for n := 0; !h.healthy() && !h.now.After(end) && n < 10_000; n++ {
			h.tick()
		}
		if !h.healthy() {
			t.Fatalf("device %v, interfaces %v and %v, want all healthy", h.dev.d.State(), h.ifs[0].l.State(), h.ifs[1].l.State())
		}
	})
}
