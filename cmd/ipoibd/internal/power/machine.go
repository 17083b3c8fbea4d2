package power

import "time"

// system is what logind says of the system.
type system uint8

const (
	awake system = iota
	sleeping
	shuttingDown
)

// phase is what the daemon does about it.
type phase uint8

const (
	serving phase = iota // it uses the fabric
	suspending
	suspended
	resuming
	stopping
	stopped
)

// patience is how long a daemon stays suspended that nobody can tell of the
// wake-up.
const patience = 30 * time.Second

// event is an input of machine.step.
type event interface{ event() }

// found says that logind is there, and how long it waits for an inhibitor.
type found struct{ limit time.Duration }

// lost says that logind, or the bus, is not there any more.
type lost struct{}

// denied says that the inhibitor was not granted, or could not be fetched.
type denied struct{}

// told is what logind said, or answered.
type told struct{ system system }

// returned says that the hook under way has returned.
type returned struct{}

// tick says that time has passed.
type tick struct{}

func (found) event()    {}
func (lost) event()     {}
func (denied) event()   {}
func (told) event()     {}
func (returned) event() {}
func (tick) event()     {}

// action is an output of machine.step.
type action uint8

const (
	takeLock action = iota
	releaseLock
	callSuspend
	callResume
	callStop
	cancelHook // the one under way
)

func (a action) String() string {
	return [...]string{"take lock", "release lock", "suspend", "resume", "stop", "cancel hook"}[a]
}

// calls says which hook is called: in a phase in which none runs, once the
// system is about to do something that the phase does not suit.
var calls = map[phase]map[system]struct {
	to   phase
	hook action
}{
	serving:   {sleeping: {suspending, callSuspend}, shuttingDown: {stopping, callStop}},
	suspended: {awake: {resuming, callResume}, shuttingDown: {stopping, callStop}},
}

// returns says where the return of a hook leads.
var returns = map[phase]phase{suspending: suspended, resuming: serving, stopping: stopped}

// prepared is the phase in which the system need not wait any longer.
var prepared = map[system]phase{sleeping: suspended, shuttingDown: stopped}

// machine decides. Its zero value knows of no logind.
type machine struct {
	phase  phase
	system system
	there  bool // logind
	locked bool
	denied bool          // no other inhibitor is asked for until things change
	limit  time.Duration // how long logind waits

	hookBy time.Time // when the hook should have returned
	lockBy time.Time // when the inhibitor goes at the latest
	wakeBy time.Time // when a deaf daemon takes it that the system is awake
}

// step takes one event and appends what is to be done, in order.
func (m *machine) step(now time.Time, ev event, out []action) []action {
	switch ev := ev.(type) {
	case found:
		m.there, m.denied, m.limit = true, false, ev.limit
	case lost:
		m.lose(now)
	case denied:
		m.locked, m.denied = false, true
	case told:
		out = m.hear(now, ev.system, out)
	case returned:
		m.phase = returns[m.phase]
	case tick:
	}
	if m.deaf() && !now.Before(m.wakeBy) {
		m.system = awake
	}
	hook := m.next()
	out = m.lock(now, out)
	return append(out, hook...)
}

// lose notes that nobody says any more what the system does.
func (m *machine) lose(now time.Time) {
	if m.there {
		m.wakeBy = now.Add(patience)
	}
	m.there = false
}

// hear notes what the system is about to do. What is known already changes
// nothing, so that a repetition moves no deadline.
func (m *machine) hear(now time.Time, s system, out []action) []action {
	if s == m.system {
		return out
	}
	m.system, m.denied = s, false
	m.hookBy, m.lockBy = now.Add(m.limit*8/10), now.Add(m.limit*9/10)
	if s != awake && m.phase == resuming {
		out = append(out, cancelHook)
	}
	return out
}

// next enters the phase that suits the system, if no hook is under way.
func (m *machine) next() []action {
	c, ok := calls[m.phase][m.system]
	if !ok {
		return nil
	}
	m.phase = c.to
	return []action{c.hook}
}

// lock takes the inhibitor or gives it back. Once the system prepares for
// something logind grants no new one.
func (m *machine) lock(now time.Time, out []action) []action {
	switch {
	case m.locked && !m.holds(now):
		m.locked = false
		return append(out, releaseLock)
	case !m.locked && !m.denied && m.system == awake && m.holds(now):
		m.locked = true
		return append(out, takeLock)
	}
	return out
}

// holds reports whether the system has to wait for the daemon.
func (m *machine) holds(now time.Time) bool {
	if !m.there || m.phase == stopped {
		return false
	}
	return m.system == awake || m.phase != prepared[m.system] && now.Before(m.lockBy)
}

// deaf reports whether the end of a sleep would not be heard.
func (m *machine) deaf() bool { return !m.there && m.system == sleeping }

// deadline is when a tick is due, if nothing happens before.
func (m *machine) deadline() (time.Time, bool) {
	switch {
	case m.locked && m.system != awake:
		return m.lockBy, true
	case m.deaf():
		return m.wakeBy, true
	}
	return time.Time{}, false
}
