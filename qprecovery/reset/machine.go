package reset

import (
	"cmp"
	"time"
)

// Defaults of a [Config], and times that need no configuration.
const (
	DefaultGrace = 60 * time.Second // R14
	DefaultLimit = 30 * time.Second // a reset that takes 300 times its 100 ms is stuck

	// retryMost is the longest pause between two tries to complete a reset, in grace periods:
	// each try may keep a device closed for one of them.
	retryMost = 4

	tryEvery    = 10 * time.Millisecond // a tenth of the time a reset usually takes
	pollEvery   = time.Second           // finds a lost event, or a leader that died
	orphanPolls = 3
	// followEvery is pollEvery for a process that could lead the reset. It differs from pollEvery, because the looks of
	// processes that the same event has woken would coincide for ever: each would find the lock on the intent held by
	// another one that only looks, until the reset ends without a leader.
	followEvery  = pollEvery / 4
	silentMargin = time.Second // time that a leader may take in addition to grace and limit
)

// Config configures a [Machine]. Zero durations are the defaults.
type Config struct {
	Device Device
	Name   string        // of this process, for messages
	Grace  time.Duration // how long a reset waits for the holders of the device
	Limit  time.Duration // how long the reset itself may take
	// Shared says that other processes may use the device.
	Shared bool
	// Exclusive says that a reset by this process affects the other processes that have
	// the device open.
	Exclusive bool
}

// State is the state of a [Machine]; doc.go has the table of transitions.
type State uint8

// States.
const (
	StateReleasing State = iota
	StateWaiting
	StateUsing
	StateLeading
	StateGathering
	StateResetting
	numState
)

var stateNames = [numState]string{"releasing", "waiting", "using", "leading", "gathering", "resetting"}

func (s State) String() string { return stateNames[s] }

// Leads reports whether this process leads a reset.
func (s State) Leads() bool { return s >= StateLeading }

// table has a handler for each event that means something in a state.
var table = [numState][numKind]func(*Machine, Event){
	StateReleasing: {Look: (*Machine).follow, Released: (*Machine).leave},
	StateWaiting:   {Look: (*Machine).follow},
	StateUsing:     {Look: (*Machine).look, Want: (*Machine).want, Opened: (*Machine).opened},
	StateLeading:   {Look: (*Machine).release, Released: (*Machine).release, Close: (*Machine).quit},
	StateGathering: {Look: (*Machine).gather, Close: (*Machine).quit},
	StateResetting: {Look: (*Machine).timeOut, Want: (*Machine).refuse, Done: (*Machine).done},
}

// Machine coordinates the resets of a device for one process. It is passive and must be
// used by one goroutine. Create it with [New].
type Machine struct {
	conf    Config
	k       Kernel
	able    bool // to reset the device, as far as this process knows
	state   State
	rec     Record // as last read or written
	pending bool   // the end of the last reset that was reported to the user was not reported yet
	works   bool   // the user has opened the device since the last reset
	wants   bool   // the user asked for a reset, which no process leads yet

	retry time.Duration // from a try to complete a reset to the next one; 0: there was none

	abandon bool // the users of this process have not released the device for the last reset

	// Of the reset that this process leads.
	complete bool
	begun    bool // it was cut short before

	deadline time.Time // of the state; zero: none
	lookAt   time.Time // zero: not before the deadline

	looked time.Time     // when this process last checked whether the leader makes progress
	waited time.Duration // without progress, while this process itself was running
	silent time.Time     // since when, if Silent was reported

	// Of the current Step.
	now time.Time
	out []Action
}

// New returns a machine whose user holds nothing of the device. The user may open the
// device after the first Step with [Look], unless that returns [Release].
func New(conf Config, k Kernel) *Machine {
	conf.Grace, conf.Limit = cmp.Or(conf.Grace, DefaultGrace), cmp.Or(conf.Limit, DefaultLimit)
	return &Machine{conf: conf, k: k, able: conf.Exclusive}
}

// Step applies an event at the time now, which must not decrease, makes the resulting system
// calls, and appends the messages for the user to out.
func (m *Machine) Step(now time.Time, ev Event, out []Action) []Action {
	m.now, m.out = now, out
	if handle := table[m.state][ev.Kind]; handle != nil {
		handle(m, ev)
	}
	out, m.out = m.out, nil
	return out
}

// NextDeadline returns when Step must be called with [Look] if there is no earlier event,
// or false if there is no deadline.
func (m *Machine) NextDeadline() (at time.Time, ok bool) {
	at = m.lookAt
	if at.IsZero() || !m.deadline.IsZero() && m.deadline.Before(at) {
		at = m.deadline
	}
	return at, !at.IsZero()
}

// State returns the state.
func (m *Machine) State() State { return m.state }

// Intent returns the record as this process knows it.
func (m *Machine) Intent() Record { return m.rec }

// SilentSince returns since when the leader of a reset has made no progress, once [Silent]
// was reported; else zero.
func (m *Machine) SilentSince() time.Time { return m.silent }

func (m *Machine) emit(a Action) { m.out = append(m.out, a) }

func (m *Machine) due() bool { return !m.deadline.IsZero() && !m.now.Before(m.deadline) }

// become is the only writer of the state.
func (m *Machine) become(s State, deadline time.Time) {
	m.state, m.deadline, m.lookAt = s, deadline, time.Time{}
	m.goesOn()
	m.lookAgain()
}

// lookAgain schedules the next look at the intent in states in which others may write it.
func (m *Machine) lookAgain() {
	if !m.conf.Shared || m.state.Leads() {
		return
	}
	m.lookAt = m.now.Add(pollEvery)
	if m.able && m.open() {
		m.lookAt = m.now.Add(followEvery)
	}
}

// read reads the intent. It ignores a record of another device.
func (m *Machine) read() {
	r := m.k.Read()
	if r.Device.NodeGUID != m.conf.Device.NodeGUID || r.Device.place() != m.conf.Device.place() {
		r = Record{}
	}
	if r != m.rec {
		m.rec = r
		m.goesOn()
	}
}

// write writes the intent of the reset that this process leads or ends.
func (m *Machine) write(p Phase, o Outcome, begun bool, detail string) {
	if m.conf.Exclusive || !m.state.Leads() {
		m.rec = Record{
			Phase:   p,
			Outcome: o,
			Begun:   begun,
			Number:  m.rec.Number,
			Device:  m.conf.Device,
			Leader:  m.conf.Name,
			Detail:  detail,
		}
		m.k.Write(m.rec)
	}
}

// askRelease asks the user to release the device.
func (m *Machine) askRelease() {
	m.pending, m.wants, m.works, m.abandon = true, false, false, true
	var intent Record
	if m.conf.Shared && m.state != StateResetting {
		intent = m.rec
	}
	m.emit(Release{intent})
}

// end reports to the user how the reset ended.
func (m *Machine) end(o Outcome, detail string) {
	if m.pending {
		m.pending = false
		abandon := o == OutcomeHeld && m.abandon
		m.emit(Ended{cmp.Or(o, OutcomeFailed), detail, abandon})
	}
}

// open reports whether a reset is under way.
func (m *Machine) open() bool { return m.rec.Phase != PhaseIdle }

// follow waits for the end of another process's reset. If the lock is free, the leader has
// died or is handing the reset over.
func (m *Machine) follow(Event) {
	m.lookAgain()
	m.read()
	if m.open() {
		if ours, _ := m.k.Claim(); !ours {
			m.deadline = time.Time{}
		} else if m.read(); m.open() && m.able {
			m.lead()
			return
		} else {
			m.endOrphan()
			m.k.Disclaim()
		}
	}
	if !m.open() {
		m.deadline = time.Time{}
		if m.k.Share() {
			m.become(StateUsing, time.Time{})
			m.end(m.rec.Outcome, m.rec.Detail)
			m.look(Event{}) // rule 2
			return
		}
	}
	if !m.pending {
		m.askRelease()
	}
	m.checkLeader()
}

// endOrphan ends a reset without a leader that this process cannot reset itself, once
// the others have had time to take it over.
func (m *Machine) endOrphan() {
	switch {
	case !m.open():
	case m.deadline.IsZero():
		m.deadline = m.now.Add(orphanPolls * pollEvery)
	case m.due():
		m.deadline = time.Time{}
		m.write(PhaseIdle, OutcomeDenied, m.rec.Begun,
			"no process that shares the device has the privilege to reset it")
	}
}

// look joins the reset of another process. It completes a reset that was cut short, at
// growing intervals, unless the device works.
func (m *Machine) look(ev Event) {
	m.lookAgain()
	m.read()
	switch {
	case m.rec.Phase != PhaseIdle:
		m.become(StateReleasing, time.Time{})
		m.askRelease()
	case m.wants:
		m.want(ev)
	case !m.rec.Begun:
		m.deadline, m.retry = time.Time{}, 0
	case m.works:
		m.void()
	case !m.able:
		m.deadline = time.Time{}
	case m.due():
		m.want(ev)
	case m.deadline.IsZero():
		m.retry = max(m.conf.Grace, min(2*m.retry, retryMost*m.conf.Grace))
		m.deadline = m.now.Add(m.retry)
	}
}

func (m *Machine) opened(ev Event) {
	m.works = true
	m.look(ev)
}

// void ends the record of a reset that was cut short, because the device works (R21). If
// another process holds the intent lock, look retries.
func (m *Machine) void() {
	m.deadline = time.Time{}
	if ours, _ := m.k.Claim(); ours {
		if m.read(); m.rec.Phase == PhaseIdle {
			m.write(PhaseIdle, m.rec.Outcome, false, m.rec.Detail)
		}
		m.k.Disclaim()
	}
}

// want leads a reset once the lock on the intent is free. A reset that affects only this
// process needs no lock.
func (m *Machine) want(ev Event) {
	if !m.conf.Exclusive {
		m.become(StateLeading, m.now.Add(m.conf.Grace))
		m.askRelease()
		return
	}
	m.wants = m.wants || ev.Kind == Want
	switch ours, err := m.k.Claim(); {
	case ours:
		m.read()
		m.lead()
	case err != nil && m.wants:
		m.askRelease()
		m.end(OutcomeFailed, err.Error())
	default:
		m.deadline = time.Time{}
		m.lookAgain()
		m.checkLeader()
	}
}

// lead begins or takes over a reset. This process holds the lock on the intent.
func (m *Machine) lead() {
	if m.rec.Phase == PhaseIdle {
		m.rec.Number++
	}
	m.begun = m.rec.Begun
	m.complete = m.begun && m.rec.Device == m.conf.Device
	released := m.state == StateWaiting
	m.become(StateLeading, m.now.Add(m.conf.Grace))
	m.write(PhaseWanted, "", m.begun, "")
	switch {
	case released:
		m.release(Event{Kind: Released})
	case !m.pending:
		m.askRelease()
	}
}

func (m *Machine) leave(ev Event) {
	m.abandon = false
	m.k.Drop()
	m.become(StateWaiting, time.Time{})
	m.follow(ev)
}

// release proceeds once the users in this process have released the device. After the grace
// period it abandons those that have not.
func (m *Machine) release(ev Event) {
	if ev.Kind == Released {
		m.abandon = false
	}
	if !m.abandon || m.due() {
		m.become(StateGathering, m.deadline)
		m.gather(ev)
	}
}

// gather resets the device once the other processes have released it, those that take part and
// those that do not.
func (m *Machine) gather(Event) {
	ours, err := true, error(nil)
	if m.conf.Exclusive {
		ours, err = m.k.Exclude()
		ours = ours && !m.k.Foreign()
	}
	switch {
	case ours:
		m.become(StateResetting, m.now.Add(m.conf.Limit))
		m.write(PhaseResetting, "", true, "")
		m.emit(Reset{Abandon: m.abandon, Complete: m.complete})
	case err != nil:
		m.finish(OutcomeFailed, m.begun, err.Error())
	case m.due():
		m.finish(OutcomeHeld, m.begun, m.k.Holders())
	default:
		m.lookAt = m.now.Add(tryEvery)
	}
}

// done ends a reset that has returned. If this process lacks permission, it hands the reset
// over, unless that has timed out.
func (m *Machine) done(ev Event) {
	denied, held := ev.Outcome == OutcomeDenied, ev.Outcome == OutcomeHeld
	m.able = m.able && !denied
	if denied && m.conf.Exclusive && m.pending {
		m.write(PhaseWanted, "", m.begun, "")
		m.k.Drop()
		m.k.Disclaim()
		m.become(StateWaiting, m.now.Add(orphanPolls*pollEvery))
		return
	}
	m.finish(ev.Outcome, ev.Unfinished || (denied || held) && m.begun, ev.Detail)
}

// finish ends the reset that this process leads. It takes the shared lock before it
// writes that the reset is over, and unlocks the intent last (rule 1).
func (m *Machine) finish(o Outcome, begun bool, detail string) {
	m.k.Share()
	m.write(PhaseIdle, o, begun, detail)
	m.k.Disclaim()
	m.become(StateUsing, time.Time{})
	m.end(o, detail)
	m.look(Event{})
}

// timeOut ends a reset that does not return for the user of this process. The other
// processes keep waiting for it, and report this process as the leader in the meantime.
func (m *Machine) timeOut(Event) {
	if m.due() {
		m.deadline = time.Time{}
		m.end(OutcomeTimeout, "")
	}
}

// refuse answers a request after the limit of a reset that has not returned.
func (m *Machine) refuse(Event) {
	if !m.pending {
		m.askRelease()
		m.end(OutcomeTimeout, "an earlier reset of the device has not returned")
	}
}

// quit ends a reset that has not begun, so that no process has to complete it.
func (m *Machine) quit(Event) {
	m.write(PhaseIdle, OutcomeFailed, m.begun, "its leader ended before it began")
}

// checkLeader reports a leader that has made no progress for longer than a reset may take.
// Time in which this process itself did not run does not count.
func (m *Machine) checkLeader() {
	m.waited += min(m.now.Sub(m.looked), pollEvery)
	m.looked = m.now
	if m.silent.IsZero() && m.waited >= m.conf.Grace+m.conf.Limit+silentMargin {
		m.silent = m.now.Add(-m.waited)
		m.emit(Silent{m.silent})
	}
}

func (m *Machine) goesOn() {
	if !m.silent.IsZero() {
		m.emit(Answers{})
	}
	m.looked, m.waited, m.silent = m.now, 0, time.Time{}
}
