package qprecovery

import (
	"slices"
	"time"
)

// Handed is what the ladder of an interface hands over to another process (R26). That process creates all
// objects of the device itself, so an interface that has objects begins there in Idle. An interface without
// objects keeps its state.
type Handed struct {
	State     State         `json:"state"` // Idle, Detached or GivenUp
	Reason    Reason        `json:"reason"`
	Record    *Record       `json:"record"` // the current recovery; nil: there is none
	NoCarrier bool          `json:"no_carrier"`
	Budget    HandedBudget  `json:"budget"`
	Pause     time.Duration `json:"pause_ns"` // the last back-off
	Frozen    bool          `json:"frozen"`   // a freeze was suspected, FrozenAt on the clock of the budget
	FrozenAt  time.Duration `json:"frozen_at_ns"`
}

// HandedBudget is a budget on its clock, which runs only in health.
type HandedBudget struct {
	Health time.Duration              `json:"health_ns"`
	Uses   map[string][]time.Duration `json:"uses_ns"` // by the name of the rung
}

// HandOver returns what another process needs to continue the ladder, or false if an operation is under
// way, or a pause before one.
func (l *Ladder) HandOver(now time.Time) (h Handed, ok bool) {
	switch l.state {
	case Healthy, Idle:
		h.State = Idle
	case Detached, GivenUp:
		h.State, h.Reason, h.Record, h.NoCarrier = l.state, l.why, l.history.current(), l.traffic.state == noCarrier
	default: // the other states hold objects of the device that are not in order
		return Handed{}, false
	}
	h.Budget, h.Pause = l.budget.handOver(now), l.pause
	h.Frozen, h.FrozenAt = l.doubt.frozen, l.doubt.at
	return h, true
}

// InheritLadder returns the ladder that continues one of another process.
func InheritLadder(now time.Time, h Handed) *Ladder {
	l := &Ladder{budget: inheritBudget(h.Budget), pause: min(max(h.Pause, 0), pauseMost)}
	l.doubt.frozen, l.doubt.at = h.Frozen, min(h.FrozenAt, l.budget.health)
	view, waits := map[State]DeviceView{Detached: ViewDown, GivenUp: ViewGivenUp}[h.State]
	if !waits {
		return l
	}
	l.state, l.why, l.device = h.State, h.Reason, view
	l.history.continues(now, h.Record, h.Reason)
	l.traffic = traffic{state: held, since: now}
	if h.NoCarrier {
		l.traffic.state = noCarrier
	}
	return l
}

// HandedDevice is what the ladder of a device hands over to another process (R26). That process opens the
// device itself, so it opens an open device as at the first start, whatever identity this version sees in
// it, but with its budget. A closed device keeps its state.
type HandedDevice struct {
	State    DeviceState   `json:"state"` // Starting, Pausing, Waiting, GivenUp or Suspended
	Reason   Reason        `json:"reason"`
	Since    time.Time     `json:"since"`
	Rung     Rung          `json:"rung"`
	Record   *Record       `json:"record"`   // the current recovery; nil: there is none
	Identity Identity      `json:"identity"` // zero: it is open, or was never open
	Absent   bool          `json:"absent"`
	Hold     hold          `json:"hold"`
	NextTry  time.Duration `json:"next_try_ns"` // from now on; as GivesUp, it has a meaning in Pausing and Waiting
	GivesUp  time.Duration `json:"gives_up_ns"` // from now on
	Budget   HandedBudget  `json:"budget"`
	Pause    time.Duration `json:"pause_ns"` // the last one
	Owed     time.Duration `json:"owed_ns"`  // the pause that is due before the next opening
}

// HandOver returns what another process needs to continue the device, or false while the device is being
// opened, closed or reset.
func (d *DeviceLadder) HandOver(now time.Time) (h HandedDevice, ok bool) {
	h.Budget, h.Pause, h.Owed = d.budget.handOver(now), d.budget.pause, d.budget.owed
	if d.reset.pending {
		return HandedDevice{}, false
	}
	switch d.state {
	case DeviceHealthy:
		return h, true
	case DeviceStarting, DevicePausing, DeviceWaiting, DeviceGivenUp, DeviceSuspended:
		h.State, h.Reason, h.Since, h.Rung, h.Record = d.state, d.why, d.since, d.rung, d.history.current()
		h.Identity, h.Absent, h.Hold = d.list.id, d.list.absent, d.session.hold
		if !d.op.due.IsZero() {
			h.NextTry = d.op.due.Sub(now)
		}
		if !d.wait.due.IsZero() {
			h.GivesUp = d.wait.due.Sub(now)
		}
		return h, d.session.state == sessionNone
	default: // the other states are transitions
		return HandedDevice{}, false
	}
}

// InheritDeviceLadder returns the machine that continues one of another process.
func InheritDeviceLadder(now time.Time, cfg DeviceConfig, h HandedDevice) *DeviceLadder {
	d := NewDeviceLadder(now, cfg)
	pause, owed := min(max(h.Pause, 0), resetPauseMost), min(max(h.Owed, 0), resetPauseMost)
	d.budget = resetBudget{inheritBudget(h.Budget), pause, owed}
	next := now.Add(min(max(h.NextTry, 0), resetPauseMost))
	switch h.State {
	case DevicePausing:
		d.op.due = next
	case DeviceWaiting:
		d.op.due, d.wait.since = next, now
		d.wait.deadline = deadline{now.Add(min(max(h.GivesUp, 0), d.cfg.GiveUpAfter)), waitMore}
	case DeviceGivenUp:
	case DeviceSuspended:
		d.suspension.on = true
	default: // as at the first start
		return d
	}
	d.state, d.why, d.since, d.rung = h.State, h.Reason, h.Since, h.Rung
	d.history.continues(now, h.Record, h.Reason)
	d.list.id, d.list.born = h.Identity, h.Identity != Identity{}
	d.list.absent = h.Absent
	d.session.hold, d.session.index = h.Hold, h.Identity.Index
	return d
}

func (b *budget) handOver(now time.Time) HandedBudget {
	h := HandedBudget{Health: b.at(now), Uses: map[string][]time.Duration{}}
	for r, marks := range b.marks {
		if len(marks) > 0 {
			h.Uses[Rung(r).String()] = slices.Clone(marks)
		}
	}
	return h
}

// inheritBudget returns the budget with at most the uses that a rung is allowed, none of them in the future.
func inheritBudget(h HandedBudget) (b budget) {
	b.health = max(h.Health, 0)
	for r := range b.marks {
		marks := h.Uses[Rung(r).String()]
		for _, m := range marks[max(0, len(marks)-rungs[r].uses):] {
			b.marks[r] = append(b.marks[r], min(m, b.health))
		}
	}
	return b
}

// current returns a copy of the open record, or nil.
func (h *history) current() *Record {
	if !h.open {
		return nil
	}
	all := h.list()
	return &all[len(all)-1]
}

// continues opens the record that another process has begun.
func (h *history) continues(now time.Time, r *Record, why Reason) {
	if r == nil {
		h.beginRecord(now, now, why)
		return
	}
	one := *r
	one.Steps, one.End = one.Steps[:min(len(one.Steps), MaxSteps)], time.Time{}
	h.records, h.open = []Record{one}, true
}
