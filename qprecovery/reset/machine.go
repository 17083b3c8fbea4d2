package reset

import (
	"cmp"
	"time"
)

// Defaults of a [Config], and times that need no configuration.
const (
	DefaultGrace = 60 * time.Second // R14
	DefaultLimit = 30 * time.Second // a reset that takes 300 times its 100 ms is stuck

	tryEvery    = 10 * time.Millisecond // a tenth of what a reset may take
	pollEvery   = time.Second           // finds a lost event, or a leader that died
	orphanPolls = 3
)

// Config configures a [Machine]. Zero durations are the defaults.
type Config struct {
	Device Device
	Name   string        // of this process, for messages
	PID    uint32        // likewise
	Grace  time.Duration // that a reset leaves to who holds the device
	Limit  time.Duration // that the reset itself may take
	// Shared says that there are files, by which other processes take part.
	Shared bool
	// Exclusive says that a reset by this process breaks what other processes have
	// open.
	Exclusive bool

	try, poll time.Duration // zero, but in an exploration
}

// State is the state of a [Machine]; doc.go has the table of transitions.
type State uint8

// States.
const (
	StateWaiting State = iota
	StateUsing
	StateReleasing
	StateLeading
	StateGathering
	StateResetting
	StateStuck
	StateClosed
	numState
)

var stateNames = [numState]string{"waiting", "using", "releasing", "leading", "gathering", "resetting", "stuck", "closed"}

func (s State) String() string { return stateNames[s] }

// Leads reports whether this process leads a reset that concerns others.
func (s State) Leads() bool { return s >= StateLeading && s <= StateStuck }

// table says what is done with each event in each state. A handler that a cell
// does not name is an event that means nothing there.
var table = [numState][numKind]func(*Machine, Event){
	StateWaiting: {
		kindWant: ignore, kindReleased: ignore, kindSeen: (*Machine).waitingSeen, kindClaimed: (*Machine).orphanClaimed,
		kindTaken: (*Machine).waitingShared, kindResetDone: ignore, kindTick: (*Machine).poll, kindClose: (*Machine).close,
	},
	StateUsing: {
		kindWant: (*Machine).want, kindReleased: ignore, kindSeen: (*Machine).usingSeen, kindClaimed: (*Machine).wantClaimed,
		kindTaken: ignore, kindResetDone: ignore, kindTick: (*Machine).poll, kindClose: (*Machine).close,
	},
	StateReleasing: {
		kindWant: ignore, kindReleased: (*Machine).released, kindSeen: (*Machine).releasingSeen, kindClaimed: (*Machine).orphanClaimed,
		kindTaken: ignore, kindResetDone: ignore, kindTick: (*Machine).poll, kindClose: (*Machine).close,
	},
	StateLeading: {
		kindWant: ignore, kindReleased: (*Machine).ready, kindSeen: ignore, kindClaimed: ignore,
		kindTaken: ignore, kindResetDone: ignore, kindTick: (*Machine).leadingTick, kindClose: (*Machine).quit,
	},
	StateGathering: {
		kindWant: ignore, kindReleased: ignore, kindSeen: ignore, kindClaimed: ignore,
		kindTaken: (*Machine).excluded, kindResetDone: ignore, kindTick: (*Machine).gatheringTick, kindClose: (*Machine).quit,
	},
	StateResetting: {
		kindWant: ignore, kindReleased: ignore, kindSeen: ignore, kindClaimed: ignore,
		kindTaken: ignore, kindResetDone: (*Machine).resetDone, kindTick: (*Machine).resettingTick, kindClose: (*Machine).close,
	},
	StateStuck: {
		kindWant: (*Machine).stuckWant, kindReleased: ignore, kindSeen: ignore, kindClaimed: ignore,
		kindTaken: ignore, kindResetDone: (*Machine).stuckDone, kindTick: ignore, kindClose: (*Machine).close,
	},
	StateClosed: {
		kindWant: ignore, kindReleased: ignore, kindSeen: ignore, kindClaimed: ignore,
		kindTaken: ignore, kindResetDone: ignore, kindTick: ignore, kindClose: ignore,
	},
}

func ignore(*Machine, Event) {}

// Machine is one process's share in the resets of a device. It is passive: one
// goroutine calls it. Make one with [New].
type Machine struct {
	conf   Config
	able   bool // this process can reset the device, as far as is known
	state  State
	rec    Record // the intent as seen last; while we lead, as written last
	serial ID     // of the last reset that was reported to the user
	told   bool   // its end was not reported yet
	wants  bool   // asked for a reset, and waits for the intent lock

	// Of the reset that this process leads.
	alone    bool // it concerns no other process
	abandon  bool
	complete bool
	begun    bool // it was cut short before

	graceAt, limitAt, tryAt, pollAt, orphanAt time.Time // zero: not set
	vigil                                     vigil

	now time.Time // of the Step under way
	out []Action  // of the Step under way
}

// New returns a machine that wants to let its user in, from its first Step.
func New(now time.Time, conf Config) *Machine {
	conf.Grace, conf.Limit = cmp.Or(conf.Grace, DefaultGrace), cmp.Or(conf.Limit, DefaultLimit)
	conf.try, conf.poll = cmp.Or(conf.try, tryEvery), cmp.Or(conf.poll, pollEvery)
	m := &Machine{conf: conf, able: conf.Shared && conf.Exclusive, pollAt: now}
	if !conf.Shared {
		m.pollAt, m.tryAt = time.Time{}, now
	}
	return m
}

// Step applies an event at time now and appends what is to be done, in order, to
// out. Time must not run backwards from call to call.
func (m *Machine) Step(now time.Time, ev Event, out []Action) []Action {
	m.now, m.out = now, out
	switch ev := ev.(type) {
	case Seen:
		if !m.state.Leads() { // else the record is ours
			m.see(ev.Record)
		}
	case Claimed:
		if ev.Held {
			m.see(ev.Record)
		}
	}
	table[m.state][ev.kind()](m, ev)
	m.watch()
	out, m.out = m.out, nil
	return out
}

// NextDeadline returns when Step must be called with [Tick] at the latest; false:
// not before the next event.
func (m *Machine) NextDeadline() (at time.Time, ok bool) {
	if at, ok = m.deadline(); !ok || !m.vigil.due.IsZero() && m.vigil.due.Before(at) {
		at = m.vigil.due
	}
	return at, !at.IsZero()
}

// deadline is NextDeadline but for the vigil.
func (m *Machine) deadline() (first time.Time, ok bool) {
	for _, at := range [...]time.Time{m.graceAt, m.limitAt, m.tryAt, m.pollAt} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, !first.IsZero()
}

// State returns the state.
func (m *Machine) State() State { return m.state }

// Intent returns the record as this process knows it.
func (m *Machine) Intent() Record { return m.rec }

func (m *Machine) emit(actions ...Action) { m.out = append(m.out, actions...) }

// see takes a record that was read. One of another device is none.
func (m *Machine) see(r Record) {
	if r.Phase == PhaseIdle && r.Number == 0 {
		r.Device = m.conf.Device // an empty file
	}
	if r.Device.Key() != m.conf.Device.Key() {
		r = Record{Phase: PhaseBad}
	}
	m.rec = r
}

// Under reports whether the record says that a reset is under way.
func (r Record) Under() bool { return r.Phase == PhaseWanted || r.Phase == PhaseResetting }

// open reports whether there is something to lead: a reset under way or, for who
// can complete it, one that was cut short long ago.
func (m *Machine) open() bool { return m.rec.Under() || m.able && m.rec.Begun }

// become is the only writer of the state.
func (m *Machine) become(s State) {
	m.state = s
	m.limitAt, m.tryAt = time.Time{}, time.Time{}
	if s != StateGathering {
		m.graceAt = time.Time{}
	}
	m.pollAt = time.Time{}
	if m.conf.Shared && s <= StateReleasing {
		m.pollAt = m.now.Add(m.conf.poll)
	}
}

func (m *Machine) due(at time.Time) bool { return !at.IsZero() && !m.now.Before(at) }

// poll looks at the intent, or tries again for its lock if the user wants a reset:
// one of the two, since the answer to the first may change what is to be done.
func (m *Machine) poll(Event) {
	switch {
	case !m.conf.Shared:
		m.letIn()
	case m.due(m.pollAt):
		m.pollAt = m.now.Add(m.conf.poll)
		m.emit(Look{})
	case m.due(m.tryAt):
		m.tryAt = time.Time{}
		m.emit(Claim{})
	}
}

// letIn lets the user open the device, which it was told to release or never had.
func (m *Machine) letIn() {
	if m.state == StateUsing {
		return
	}
	m.become(StateUsing)
	if !m.told {
		m.emit(Open{})
		return
	}
	m.end(m.rec.Outcome, m.rec.Detail)
}

// tell tells the user to release the device.
func (m *Machine) tell() {
	m.serial, m.told, m.wants = m.serial+1, true, false
	m.emit(Release{m.serial})
}

// end tells the user how the reset ended.
func (m *Machine) end(o Outcome, detail string) {
	m.told = false
	m.emit(Ended{Reset: m.serial, Outcome: max(o, OutcomeDone), Detail: detail})
}

func (m *Machine) waitingSeen(Event) {
	if m.open() || m.rec.Phase == PhaseBad {
		m.emit(Claim{})
		return
	}
	m.emit(Share{})
}

func (m *Machine) waitingShared(ev Event) {
	if ev.(Taken).Held {
		m.letIn()
		m.emit(Look{}) // rule 2
	}
}

// orphanClaimed takes the lock of a reset that we do not lead: if it is free, the
// leader has died, or asks another process to go on.
func (m *Machine) orphanClaimed(ev Event) {
	if !ev.(Claimed).Held {
		m.orphanAt = time.Time{}
		return
	}
	switch {
	case m.open() && m.able:
		m.orphanAt = time.Time{}
		m.lead(m.rec.Number)
		return
	case m.open() && !m.due(m.orphanAt):
		if m.orphanAt.IsZero() {
			m.orphanAt = m.now.Add(orphanPolls * m.conf.poll)
		}
		m.emit(Disclaim{})
		return
	case m.open():
		m.write(PhaseIdle, OutcomeDenied, m.rec.Begun, "no process that shares the device has the privilege to reset it")
	case m.rec.Phase == PhaseBad:
		m.write(PhaseIdle, OutcomeFailed, false, "the record of it was not readable")
	}
	m.orphanAt = time.Time{}
	m.emit(Disclaim{})
	if m.state == StateReleasing {
		m.letIn()
		return
	}
	m.emit(Share{})
}

// lead begins or goes on with a reset, whose intent lock is ours.
func (m *Machine) lead(number uint64) {
	m.alone, m.abandon = false, false
	m.begun = m.rec.Begun
	m.complete = m.begun && m.rec.Device == m.conf.Device
	m.rec.Number = max(number, 1)
	m.write(PhaseWanted, OutcomeNone, m.begun, "")
	waiting := m.state == StateWaiting
	if m.state == StateUsing {
		m.tell()
	}
	m.become(StateLeading)
	m.graceAt = m.now.Add(m.conf.Grace)
	if waiting {
		m.gather()
	}
}

// write writes the intent of the reset under way.
func (m *Machine) write(p Phase, o Outcome, begun bool, detail string) {
	m.rec = Record{
		Phase: p, Outcome: o, Begun: begun, Number: m.rec.Number,
		PID: m.conf.PID, Device: m.conf.Device, Leader: m.conf.Name, Detail: detail,
	}
	m.emit(Write{m.rec})
}

// usingSeen takes part in a reset of another process. One that was cut short, and
// could not be completed since the device was held, is tried again from time to time.
func (m *Machine) usingSeen(Event) {
	switch {
	case m.rec.Under():
		m.become(StateReleasing)
		m.tell()
		if m.able {
			m.emit(Claim{})
		}
	case !m.open():
		m.orphanAt = time.Time{}
	case m.orphanAt.IsZero():
		m.orphanAt = m.now.Add(m.conf.Grace)
	case m.due(m.orphanAt):
		m.orphanAt = time.Time{}
		m.want(nil)
	}
}

func (m *Machine) want(Event) {
	switch {
	case m.wants:
	case m.conf.Shared && m.conf.Exclusive:
		m.wants = true
		m.emit(Claim{})
	default:
		m.alone, m.abandon, m.complete = true, false, false
		m.become(StateLeading)
		m.graceAt = m.now.Add(m.conf.Grace)
		m.tell()
	}
}

func (m *Machine) wantClaimed(ev Event) {
	if !ev.(Claimed).Held {
		m.tryAt = m.now.Add(m.conf.try)
		return
	}
	number := m.rec.Number
	if !m.open() {
		number++
	}
	if m.able {
		m.lead(number)
		return
	}
	m.rec.Number = max(number, 1)
	m.write(PhaseWanted, OutcomeNone, m.rec.Begun, "")
	m.emit(Disclaim{})
	m.usingSeen(nil)
	m.orphanAt = m.now.Add(orphanPolls * m.conf.poll)
}

func (m *Machine) releasingSeen(Event) {
	switch m.rec.Phase {
	case PhaseIdle:
		m.letIn()
	case PhaseWanted, PhaseResetting, PhaseBad:
		m.emit(Claim{})
	}
}

func (m *Machine) released(ev Event) {
	if ev.(Released).Reset == m.serial {
		m.emit(Drop{})
		m.become(StateWaiting)
		m.emit(Look{})
	}
}

func (m *Machine) ready(ev Event) {
	if ev.(Released).Reset == m.serial {
		m.gather()
	}
}

func (m *Machine) leadingTick(Event) {
	if m.due(m.graceAt) {
		m.abandon = true
		m.gather()
	}
}

// gather waits for the other processes to release the device.
func (m *Machine) gather() {
	if m.alone {
		m.begin()
		return
	}
	m.emit(Drop{})
	m.become(StateGathering)
	m.emit(Exclude{Name: m.due(m.graceAt)})
}

func (m *Machine) gatheringTick(Event) {
	if m.due(m.tryAt) || m.due(m.graceAt) {
		m.tryAt = time.Time{}
		m.emit(Exclude{Name: m.due(m.graceAt)})
	}
}

func (m *Machine) excluded(ev Event) {
	switch taken := ev.(Taken); {
	case taken.Held:
		m.begin()
	case m.due(m.graceAt):
		m.finish(OutcomeHeld, m.begun, taken.By)
	default:
		m.tryAt = m.now.Add(m.conf.try)
	}
}

// begin resets the device.
func (m *Machine) begin() {
	m.become(StateResetting)
	m.limitAt = m.now.Add(m.conf.Limit)
	if !m.alone {
		m.write(PhaseResetting, OutcomeNone, true, "")
	}
	m.emit(Reset{Abandon: m.abandon, Complete: m.complete})
}

func (m *Machine) resetDone(ev Event) {
	done := ev.(ResetDone)
	if m.alone || done.Outcome != OutcomeDenied {
		m.finish(done.Outcome, false, done.Detail)
		return
	}
	m.able = false
	m.write(PhaseWanted, OutcomeNone, m.begun, "")
	m.emit(Drop{}, Disclaim{})
	m.become(StateWaiting)
	m.orphanAt = m.now.Add(orphanPolls * m.conf.poll)
}

// finish ends the reset that we lead. It takes the shared lock before it writes that
// the reset is over, and releases the intent lock last (rule 1).
func (m *Machine) finish(o Outcome, begun bool, detail string) {
	if m.alone {
		m.become(StateUsing)
		m.end(o, detail)
		return
	}
	m.emit(Share{})
	m.write(PhaseIdle, o, begun, detail)
	m.emit(Disclaim{})
	m.letIn()
}

func (m *Machine) resettingTick(Event) {
	if !m.due(m.limitAt) {
		return
	}
	if !m.alone {
		m.write(PhaseIdle, OutcomeTimeout, true, "")
	}
	m.become(StateStuck)
	if m.told {
		m.end(OutcomeTimeout, "")
		return
	}
	m.emit(Open{})
}

func (m *Machine) stuckWant(Event) {
	m.end(OutcomeTimeout, "an earlier reset of the device has not returned")
}

func (m *Machine) stuckDone(ev Event) {
	done := ev.(ResetDone)
	m.become(StateUsing)
	if m.alone {
		return
	}
	denied := done.Outcome == OutcomeDenied
	m.able = m.able && !denied
	m.emit(Share{})
	m.write(PhaseIdle, done.Outcome, denied && m.begun, done.Detail)
	m.emit(Disclaim{})
}

// quit ends a reset that has not begun, so that none is left to complete.
func (m *Machine) quit(ev Event) {
	if !m.alone {
		m.write(PhaseIdle, OutcomeFailed, m.begun, "its leader ended before it began")
	}
	m.close(ev)
}

func (m *Machine) close(Event) { m.become(StateClosed); m.pollAt = time.Time{} }
