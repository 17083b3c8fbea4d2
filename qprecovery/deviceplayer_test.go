package qprecovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"ipoibd/qprecovery/reset"
	"ipoibd/qprecovery/transcript"
)

// devicePlayer plays the lines of a transcript about a [DeviceLadder]:
//
//	device [foreign] [grace D]          an open device, with the list [same 7]
//	device new                          a device that was never open
//	list [same|other|dead INDEX]...     the list of devices from now on; dead: the same one, dead
//	listed                              answers a Refresh with the current list
//	opened | closed                     the opening or closing succeeds
//	stale                               the result of an earlier opening arrives
//	failed [CLASS]                      the opening fails; without a class: it is refused
//	grace-over                          the coordinator continues without the users
//	pending N | ended OUTCOME           a reset is announced, or has ended
//	done | over OUTCOME                 all requests succeed; resets have this outcome
//	fault CLASS [gen N] [since D] | event TYPE [gen N] | checked [as CLASS] [gen N]
//	asked REASON [gen N]
//	reset | recover | suspend | resume  commands
//
// Each Refresh is answered at once, except after the line "hold lists".
type devicePlayer struct {
	*DeviceLadder
	p       *player
	open    Open
	refresh uint64
	list    []Identity
	held    bool // Refresh actions are not answered at once
	cmd     uint64
	last    uint64 // the last reset announced
	agrees  *scripted
}

// scripted is the agreement about resets, whose other parts a test plays.
type scripted struct {
	next []reset.Action       // what it says next
	hear func(ev reset.Event) // of the machine; nil: nothing
}

func (s *scripted) NextDeadline() (time.Time, bool) { return time.Time{}, false }

func (s *scripted) Step(_ time.Time, ev reset.Event, out []reset.Action) []reset.Action {
	if s.hear != nil {
		s.hear(ev)
	}
	out, s.next = append(out, s.next...), nil
	return out
}

// join is for [DeviceConfig].
func (s *scripted) join([]Identity) (Resets, error) { return s, nil }

// said is an event of tests: the agreement says something.
type said struct{ reset.Action }

func (said) deviceEvent() {}

// What the agreement says: a reset is pending, does not wait for the users any longer, or has ended.
var (
	sayPending   = said{reset.Release{}}
	sayGraceOver = said{reset.Reset{Abandon: true}}
)

func sayEnded(o reset.Outcome) said { return said{reset.Ended{Outcome: o}} }

// event returns the event to give the machine for one of a test.
func (s *scripted) event(ev DeviceEvent) DeviceEvent {
	if a, ok := ev.(said); ok {
		s.next = []reset.Action{a.Action}
		return ResetEvent{reset.Event{Kind: reset.Look}}
	}
	return ev
}

// requested and released are what the machine tells the agreement, among its actions.
type (
	requested struct{ Reason }
	released  struct{ id uint64 }
)

func (requested) deviceAction() {}
func (released) deviceAction()  {}

func newDevicePlayer(p *player, w []string) *devicePlayer {
	h := &devicePlayer{p: p, list: []Identity{same}, agrees: &scripted{}}
	h.agrees.hear = func(ev reset.Event) {
		switch ev.Kind { //nolint:exhaustive // the others are not for the other processes
		case reset.Want:
			h.emit(requested{h.why})
		case reset.Released:
			h.emit(released{h.last})
		}
	}
	cfg := DeviceConfig{AllowForeign: slices.Contains(w, "foreign"), Join: h.agrees.join}
	if i := slices.Index(w, "grace"); i >= 0 {
		cfg.Grace = transcript.Duration(p.t, w[i+1])
	}
	h.DeviceLadder = NewDeviceLadder(p.now, cfg)
	if slices.Contains(w, "new") {
		return h
	}
	h.Step(p.now, Listed{Devices: h.list}, nil)
	h.Step(p.now, Opened{Op: h.session.op, Identity: same}, nil)
	return h
}

func (h *devicePlayer) state() string     { return h.State().String() }
func (h *devicePlayer) History() []Record { return h.history.list() }
func (h *devicePlayer) Counts() Counts    { return h.history.counts }

// step also answers Refresh actions.
func (h *devicePlayer) step(now time.Time, ev any) (out []any, ok bool) {
	e, ok := ev.(DeviceEvent)
	if !ok {
		return nil, false
	}
	for _, a := range h.Step(now, h.agrees.event(e), nil) {
		if _, says := a.(ResetAction); !says {
			out = append(out, a)
		}
	}
	for _, a := range out {
		switch a := a.(type) {
		case Open:
			h.open = a
		case Refresh:
			h.refresh = a.Op
		}
	}
	if h.refresh != 0 && !h.held {
		op := h.refresh
		h.refresh = 0
		more, _ := h.step(now, Listed{Op: op, Devices: h.list})
		out = append(out, more...)
	}
	return out, true
}

func (h *devicePlayer) play(w []string) []string {
	one := func(ev any) []string { return h.p.input(ev) }
	arg := append(w, "")[1]
	switch w[0] {
	case "hold":
		h.held = true
	case "list":
		h.list = nil
		for i := 1; i+1 < len(w); i += 2 {
			id := same
			if w[i] == "other" {
				id = other
			}
			id.Dead = w[i] == "dead"
			id.Index = uint32(transcript.Number(h.p.t, w[i+1]))
			h.list = append(h.list, id)
		}
		return one(Listed{Devices: h.list})
	case "listed":
		op := h.refresh
		h.refresh = 0
		return one(Listed{Op: op, Devices: h.list})
	case "opened":
		return one(Opened{Op: h.open.Op, Identity: same})
	case "failed":
		return one(Opened{Op: h.open.Op, Class: named(h.p.t, append(w, "refused")[1], NumClass)})
	case "stale":
		return one(Opened{Op: h.open.Op - 1, Identity: same})
	case "closed":
		return one(Closed{h.session.gen})
	case "grace-over":
		return one(sayGraceOver)
	case "pending":
		h.last = uint64(transcript.Number(h.p.t, arg))
		return one(sayPending)
	case "ended":
		return one(sayEnded(outcomeNamed(h.p, arg)))
	case "done":
		return h.done(reset.OutcomeDone)
	case "over":
		return h.done(outcomeNamed(h.p, arg))
	case "asked":
		return one(Asked{Reason: named(h.p.t, arg, NumReason), Gen: uint32(transcript.Number(h.p.t, option(w, "gen", fmt.Sprint(h.gen))))})
	case "reset", "recover", "suspend", "resume":
		h.cmd++
		return one(Command{ID: h.cmd, Do: doNames[w[0]]})
	default:
		h.p.gen = h.gen
		return one(h.p.event(w))
	}
	return nil
}

// done answers requests until there are none.
func (h *devicePlayer) done(o reset.Outcome) (out []string) {
	before := h.DeviceLadder.state
	if h.session.state == sessionOpening {
		return h.p.input(Opened{Op: h.open.Op, Identity: same})
	}
	if h.session.state == sessionClosing {
		out = append(out, h.p.input(Closed{h.session.gen})...)
	}
	if h.DeviceLadder.state == before && h.reset.wanted {
		if !h.reset.pending {
			h.last++
			out = append(out, h.p.input(sayPending)...)
		}
		out = append(out, h.p.input(sayEnded(o))...)
	}
	return out
}

var doNames = map[string]Do{"reset": DoReset, "recover": DoRecover, "suspend": DoSuspend, "resume": DoResume}

var outcomeNames = map[string]reset.Outcome{
	"done": reset.OutcomeDone, "failed": reset.OutcomeFailed, "denied": reset.OutcomeDenied,
	"timeout": reset.OutcomeTimeout, "held": reset.OutcomeHeld, "no-device": reset.OutcomeAbsent,
}

func outcomeNamed(p *player, name string) reset.Outcome {
	o, ok := outcomeNames[name]
	if !ok {
		p.t.Fatalf("no outcome %q", name)
	}
	return o
}

var resultNames = [numResult]string{
	"done", "not open", "it is open", "under way", "suspended", "not suspended", "resumed", "given up",
}

// describeDevice writes an action.
func describeDevice(a any) string {
	switch a := a.(type) {
	case Close:
		if a.Fail {
			return fmt.Sprintf("fail and close session %d: %v", a.Gen, a.Reason)
		}
		return fmt.Sprintf("close session %d: %v", a.Gen, a.Reason)
	case Abandon:
		return fmt.Sprintf("abandon session %d", a.Gen)
	case CancelOpen:
		return "cancel the opening"
	case requested:
		return fmt.Sprintf("request reset: %v", a.Reason)
	case released:
		return fmt.Sprintf("released for reset %d", a.id)
	case Paused:
		return fmt.Sprintf("pause of %v", a.For)
	case Entered:
		return fmt.Sprintf("rung %v: %v", a.Rung, a.Reason)
	case Ended:
		verb := "recovered from"
		if a.Stopped {
			verb = "stopped in"
		}
		return fmt.Sprintf("%s %v: %v, lasted %v, outage %v", verb, a.Worst(), a.Reason, a.Duration(), a.Outage())
	case Answer:
		return fmt.Sprintf("answer %d: %s", a.ID, resultNames[a.Result])
	}
	return strings.TrimPrefix(fmt.Sprintf("%T", a), "qprecovery.")
}
