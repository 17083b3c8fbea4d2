package qprecovery

import (
	"testing"
	"time"

	"ipoibd/hca"
)

// Each pair of state and cause has at most one row, so the rows are a function.
func TestTableHasNoTwoRows(t *testing.T) {
	seen := map[[2]int]bool{}
	for _, r := range rows {
		key := [2]int{int(r.from), int(r.on)}
		if seen[key] || r.on == causeNone {
			t.Errorf("%v on %d: duplicate or missing row", r.from, r.on)
		}
		seen[key] = true
	}
}

// TestR06Totality: each operation can succeed, fail and time out; every other state except
// Healthy can end; each cause of a larger scope has a transition in every state of a smaller
// one; the results of a rung lead to health or to the next rung, and repetition leads no
// further than the CQ rung.
func TestR06Totality(t *testing.T) {
	for s := Healthy; s < numState; s++ {
		for on := range numCause {
			r := transitions[s][on]
			if must := mustHandle(s, on); must && r == nil {
				t.Errorf("%v has no transition for cause %d", s, on)
			}
		}
		for _, on := range []cause{causeFailed, causeTimeout, causeRepeated} {
			if r := transitions[s][on]; r != nil && s.Rung() > RungNone && r.to.Rung() != s.Rung() && r.to.Rung() != s.Rung()+1 {
				t.Errorf("%v leads from %v to %v", on, s.Rung(), r.to.Rung())
			}
		}
		if r := transitions[s][causeRepeated]; r != nil && r.to.Rung() > RungRebuildCQ {
			t.Errorf("repetition leads from %v to %v", s.Rung(), r.to.Rung())
		}
	}
}

// TestR06EachRungRuns: the tables of rungs and states agree; a state that runs its rung emits
// Run for it; and each operation is one action.
func TestR06EachRungRuns(t *testing.T) {
	for r, x := range rungs {
		if runs := x.limit > 0; runs != x.state.runs() || runs && (x.state.Rung() != Rung(r) || states[x.state].limit != x.limit) {
			t.Errorf("%v has the limit %v, but its state %v has the rung %v and the limit %v", Rung(r), x.limit, x.state, x.state.Rung(), states[x.state].limit)
		}
	}
	for s := range numState {
		l := &Ladder{}
		if s == Detached {
			l.device = ViewDown // else it continues at once
		}
		l.become(epoch, s, ReasonCQError)
		var operations []Action
		for _, a := range l.out {
			switch a.(type) {
			case Query, Prove, Run, Release:
				operations = append(operations, a)
			}
		}
		switch {
		case len(operations) > 1 || s.operating() != (len(operations) == 1):
			t.Errorf("%v: emits %v, want one operation exactly if it has a limit", s, operations)
		case s.runs():
			if run, ok := operations[0].(Run); !ok || run.Rung != s.Rung() {
				t.Errorf("%v: emits %#v, want %v", s, operations[0], s.Rung())
			}
		}
	}
}

func mustHandle(s State, on cause) bool {
	switch on {
	case causeDone, causeFailed, causeTimeout:
		return s.operating()
	case causeFoundSQE, causeFoundBad:
		return s == Querying
	case causeProven:
		return s == Proving
	case causeFreeze:
		return s == Healthy
	case causeRepeated:
		return s >= Resuming && s <= Rebuilding || s == Querying
	case causeDue:
		return s == Pausing || s == Asking
	case causeCQ, causeOrderCQ:
		return s < Rebuilding
	case causeDevice:
		return s < Asking
	case causeDown:
		return s < Releasing || s == Starting
	case causeUp:
		return s == Detached || s == GivenUp
	default:
		return false
	}
}

// TestR06Windows: a rung is spent after exactly its allowance, and available again after
// exactly a window of health. Uses do not expire during recovery.
func TestR06Windows(t *testing.T) {
	for r := range NumRung {
		a := rungs[r].allowance
		if a.uses == 0 {
			continue
		}
		t.Run(r.String(), func(t *testing.T) {
			var b budget
			now := epoch
			b.healthy(now)
			for i := range a.uses {
				if b.spent(now, r) {
					t.Errorf("spent after %d of %d uses", i, a.uses)
				}
				b.use(now, r)
			}
			b.ill(now)
			now = now.Add(time.Hour)
			b.healthy(now)
			if now = now.Add(a.window - 1); !b.spent(now, r) {
				t.Error("a use expired before the end of its window")
			}
			if b.spent(now.Add(1), r) {
				t.Error("a use did not expire after its window")
			}
		})
	}
	var b budget
	for range 100 {
		b.use(epoch, RungGiveUp)
	}
	if b.spent(epoch, RungGiveUp) || len(b.marks[RungGiveUp]) > 0 {
		t.Error("a rung without an allowance is counted")
	}
}

func TestBackOff(t *testing.T) {
	var d time.Duration
	for _, want := range []time.Duration{1, 2, 4, 5, 5} {
		if d = BackOff(d, 1, 5); d != want {
			t.Errorf("%d, want %d", d, want)
		}
	}
}

// TestR29Bounds: the history and a record's steps are bounded, further steps
// are counted, and the caller may modify the returned records.
func TestR29Bounds(t *testing.T) {
	var h history
	for i := range MaxRecords + 10 {
		h.beginRecord(epoch.Add(time.Duration(i)), epoch.Add(time.Hour), ReasonCQError)
		for range MaxSteps + 5 {
			h.step(epoch, RungRebuildCQ, ReasonCQError)
		}
		h.end(epoch.Add(time.Duration(i+1)), false)
	}
	list := h.list()
	first := list[0]
	if len(list) != MaxRecords || len(first.Steps) != MaxSteps || first.Omitted != 5 {
		t.Errorf("%d records, %d steps, %d omitted", len(list), len(first.Steps), first.Omitted)
	}
	if first.Start != epoch.Add(10) || first.Outage() != 1 || first.Duration() != 1 || first.Worst() != RungRebuildCQ {
		t.Errorf("first record: %+v, want the first step's time and rung", first)
	}
	list[0].Steps[0].Rung = RungGiveUp
	if h.list()[0].Worst() != RungRebuildCQ || h.counts.Rungs[RungRebuildCQ] != (MaxRecords+10)*(MaxSteps+5) {
		t.Error("the caller modified the history through a copy, or omitted steps were counted wrongly")
	}
}

// TestR03Request: the first failed request of a recovery is kept, as a copy.
func TestR03Request(t *testing.T) {
	l := &Ladder{}
	l.Step(epoch, Attached{1}, nil)
	req := &Request{SGList: []hca.SGE{{Length: 1, LKey: 2}}}
	l.Step(epoch, Fault{Gen: 1, Class: ClassRequestError, Request: req}, nil)
	req.SGList[0].LKey = 99
	l.Step(epoch, Fault{Gen: 1, Class: ClassRequestError, Request: req}, nil)
	if got := l.History()[0].Request.SGList[0].LKey; got != 2 {
		t.Errorf("LKey of the kept request: %d, want 2", got)
	}
}

// TestR22Same: Same compares the fields that identify a device, and ignores the others.
func TestR22Same(t *testing.T) {
	for name, change := range map[string]func(*Identity){
		"node":   func(i *Identity) { i.NodeGUID[0]++ },
		"port":   func(i *Identity) { i.PortGUID[7]++ },
		"system": func(i *Identity) { i.SysImageGUID[0]++ },
		"pci":    func(i *Identity) { i.PCIAddr = "" },
		"parent": func(i *Identity) { i.Parent = "br0" },
	} {
		id := same
		if change(&id); same.Same(id) {
			t.Errorf("a device with another %s counts as the same", name)
		}
	}
	id := same
	if id.Index, id.Name = 99, "mlx5_9"; !same.Same(id) {
		t.Error("the device with another index and name counts as another device")
	}
}

// TestR22ReportsAreBounded: the ladder remembers a bounded number of reported devices.
func TestR22ReportsAreBounded(t *testing.T) {
	var f foreigners
	for i := range uint32(1000) {
		if !f.add(Identity{Index: i}) || f.add(Identity{Index: i}) {
			t.Fatalf("device %d was not reported exactly once", i)
		}
	}
	if len(f) != maxForeign {
		t.Errorf("%d devices remembered, want %d", len(f), maxForeign)
	}
}

// TestR09CarrierBound: the carrier goes down exactly after the bound.
func TestR09CarrierBound(t *testing.T) {
	l := &Ladder{}
	l.Step(epoch, Attached{1}, nil)
	l.Step(epoch, Fault{Gen: 1, Class: ClassDeviceError}, nil)
	early, late := l.Step(epoch.Add(CarrierBound-1), Tick{}, nil), l.Step(epoch.Add(CarrierBound), Tick{}, nil)
	if len(early) != 0 || len(late) != 1 || late[0] != Action(CarrierDown{}) {
		t.Errorf("%v, then %v, want nothing, then CarrierDown", early, late)
	}
	if l.Reason() != ReasonDeviceError || l.State() != Asking {
		t.Errorf("%v, %v, want %v, %v", l.State(), l.Reason(), Asking, ReasonDeviceError)
	}
}

// TestR23Configured: the grace period and the wait can be configured.
func TestR23Configured(t *testing.T) {
	d := NewDeviceLadder(epoch, DeviceConfig{Join: new(scripted).join, Grace: time.Second, GiveUpAfter: time.Hour})
	for _, ev := range []DeviceEvent{Listed{Devices: []Identity{same}}, Opened{Op: 1, Identity: same}, Listed{}} {
		d.Step(epoch, ev, nil)
	}
	late := epoch.Add(time.Second + dropMargin)
	if d.Step(late, Tick{}, nil); d.State() != DeviceWaiting || d.why != ReasonVerbTimeout {
		t.Errorf("%v, %v, want %v, %v", d.State(), d.why, DeviceWaiting, ReasonVerbTimeout)
	}
	end := late.Add(time.Hour)
	for at, ok := d.NextDeadline(); ok && at.Before(end); at, ok = d.NextDeadline() {
		d.Step(at, Tick{}, nil)
	}
	if d.Step(end.Add(-1), Tick{}, nil); d.State() != DeviceWaiting {
		t.Error("gave up too early")
	}
	if d.Step(end, Tick{}, nil); d.State() != DeviceGivenUp || d.gen != 1 {
		t.Errorf("%v, generation %d, want %v, generation 1", d.State(), d.gen, DeviceGivenUp)
	}
}
