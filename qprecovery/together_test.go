package qprecovery

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/qprecovery/reset"
)

// host is a device with two interfaces, and a shell that passes events between the ladders
// and executes their actions after a millisecond, with a result determined by fault. The interfaces
// look at the state of the device, so they miss states that are over before they look (R13).
type host struct {
	t     *rapid.T
	now   time.Time
	dev   *deviceWatcher
	ifs   []*watcher
	seen  []uint32 // by each interface: the session that it uses, or used last
	holds []bool   // each interface: that session
	fault func() bool
	todo  []func() // pending answers
	list  []Identity
	hung  uint64 // the Open that is never answered; 0: none
}

func newHost(t *rapid.T, fault func() bool) *host {
	h := &host{t: t, now: epoch, dev: newDeviceWatcher(DeviceConfig{}), fault: fault, list: []Identity{same}}
	h.device(Listed{Devices: h.list})
	h.device(Opened{Op: h.dev.opening, Identity: same})
	for range 2 {
		w := newWatcher()
		h.ifs, h.seen, h.holds = append(h.ifs, w), append(h.seen, h.dev.gen), append(h.holds, true)
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
	i, op, asked, before := slices.Index(h.ifs, w), w.op, w.asked, w.l.State()
	check(h.t, w.do(ev))
	if s := w.l.State(); s == Idle || s == Detached || s == GivenUp || s == Asking && before == Starting { // the shell releases what it cannot start
		h.holds[i] = false
	}
	if w.op != op && w.op != 0 {
		d := Done{Op: w.op, Class: h.class(), State: hca.QPErr}
		h.todo = append(h.todo, func() { h.apply(w, d) })
	}
	if w.asked != asked {
		a := Asked{w.l.Reason(), h.seen[i]}
		h.todo = append(h.todo, func() { h.device(a) })
	}
}

// device applies an event to the device's ladder.
func (h *host) device(ev DeviceEvent) {
	h.dev.now = h.now
	check(h.t, h.dev.do(ev))
}

// follow shows an interface the present state of the device, in the way of the recovery of package iface.
func (h *host) follow(i int) {
	for w := h.ifs[i]; ; {
		up, knows := h.dev.d.State() == DeviceHealthy, w.l.Device()
		switch {
		case knows == ViewUp && (!up || h.seen[i] != h.dev.gen):
			h.apply(w, DeviceDown{})
		case knows != ViewUp && up && !h.holds[i]:
			h.seen[i], h.holds[i] = h.dev.gen, true
			h.apply(w, DeviceUp{})
		case knows == ViewDown && h.dev.d.State() == DeviceGivenUp:
			h.apply(w, DeviceGaveUp{})
		default:
			return
		}
	}
}

// answerDevice gives the device's ladder one answer that it waits for. It returns false if
// the ladder waits for none.
func (h *host) answerDevice() bool {
	d, resets := h.dev.d, &h.dev.d.reset
	switch {
	case h.dev.opening != 0 && h.hung == h.dev.opening:
		return false
	case h.dev.opening != 0 && h.fault():
		h.hung = h.dev.opening
		h.openFails()
	case h.dev.opening != 0:
		h.device(Opened{Op: h.dev.opening, Identity: same})
	case h.dev.closing && h.ready():
		h.device(Closed{h.dev.gen})
	case h.dev.refresh != 0:
		h.device(Listed{Op: h.dev.refresh, Devices: h.list})
	case resets.pending && resets.released:
		outcome := reset.OutcomeDone
		if h.fault() {
			outcome = rapid.SampledFrom(resetOutcomes).Draw(h.t, "outcome")
		}
		h.device(sayEnded(outcome))
	case d.State() == DeviceDropping && resets.wanted && !resets.pending && resets.outcome == "":
		h.device(sayPending)
	default:
		return false
	}
	return true
}

// openFails answers an Open with an error of any class, or not at all.
func (h *host) openFails() {
	if c := Class(rapid.IntRange(0, int(NumClass)-1).Draw(h.t, "class of the opening")); c != ClassSuccess {
		h.hung = 0
		h.device(Opened{Op: h.dev.opening, Class: c})
	}
}

func (h *host) applyAll(ev Event) {
	for _, w := range h.ifs {
		h.apply(w, ev)
	}
}

// ready reports whether every interface has released the device.
func (h *host) ready() bool {
	return !slices.Contains(h.holds, true)
}

// tick advances the time by a millisecond, or to the next deadline if no answer
// is pending. Each interface looks at the device now and then.
func (h *host) tick() {
	h.now = h.now.Add(time.Millisecond)
	todo := h.todo
	h.todo = nil
	for _, answer := range todo {
		answer()
	}
	answered := h.answerDevice()
	for i := range h.ifs {
		if rapid.IntRange(0, 5).Draw(h.t, "looks") == 0 {
			h.follow(i)
		}
	}
	if !answered && len(h.todo) == 0 && len(todo) == 0 {
		for i := range h.ifs {
			h.follow(i)
		}
		if closes := h.dev.closing && h.ready(); len(h.todo) == 0 && !closes {
			h.now = h.nextDeadline()
		}
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

// TestR06Together: a device and its two interfaces suffer random faults, and verbs and openings that
// fail or hang at random. Once these end, all become healthy within the longest pauses. Only after a
// give-up that takes a command.
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
		end := h.now.Add(resetPauseMost + pauseMost + DefaultGrace + openLimit + time.Minute)
		for n := 0; !h.healthy() && !h.now.After(end) && n < 10_000; n++ {
			if h.dev.d.State() == DeviceGivenUp {
				h.device(Command{1, DoRecover})
			}
			h.tick()
		}
		if !h.healthy() {
			t.Fatalf("device %v, interfaces %v and %v, want all healthy", h.dev.d.State(), h.ifs[0].l.State(), h.ifs[1].l.State())
		}
	})
}
