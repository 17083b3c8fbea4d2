package power

import "time"

// system is what the system is about to do, as reported by logind.
type system uint8

const (
	awake system = iota
	sleeping
	shuttingDown
)

// event is an input of machine.step, one of these.
type event any

type (
	found struct { // logind is there
		limit  time.Duration // how long it waits for an inhibitor
		system system
	}
	lost      struct{}                // logind, or the bus, is gone
	denied    struct{}                // logind granted no inhibitor, or did not answer
	announced struct{ system system } // logind announces what the system is about to do
	returned  struct{}                // the running hook has returned
	tick      struct{}                // time has passed
)

// action is an output of machine.step.
type action uint8

const (
	takeLock action = iota
	releaseLock
	callSuspend
	callResume
	callStop
	cancelHook // the one that runs
)

func (a action) String() string {
	return [...]string{"take lock", "release lock", "suspend", "resume", "stop", "cancel hook"}[a]
}

// machine decides when to call hooks and when to hold an inhibitor. It is ready to use; no
// logind is known at first.
type machine struct {
	system  system
	ready   system // the state for which the last hook prepares, or has prepared, the daemon
	running bool   // that hook has not returned
	there   bool   // logind
	locked  bool
	limit   time.Duration // how long logind waits

	hookBy time.Time // when the hook should have returned
	lockBy time.Time // when the inhibitor is released at the latest
}

// step handles one event and appends the actions to take, in order.
func (m *machine) step(now time.Time, ev event, out []action) []action {
	system, take := m.system, false // take an inhibitor only when the answer may have changed
	switch ev := ev.(type) {
	case found:
		m.there, m.limit, system, take = true, ev.limit, ev.system, true
	case lost:
		m.there, system = false, awake
	case denied:
		m.locked = false
	case announced:
		system = ev.system
	case returned:
		m.running = false
	}
	if system != m.system { // a repetition moves no deadline
		m.system, take = system, true
		m.hookBy, m.lockBy = now.Add(m.limit*8/10), now.Add(m.limit*9/10)
		if system != awake && m.running && m.ready == awake {
			out = append(out, cancelHook)
		}
	}
	call := !m.running && m.ready != m.system && m.ready != shuttingDown
	if call {
		m.ready, m.running = m.system, true
	}
	switch holds := m.holds(now); {
	case m.locked && !holds:
		m.locked = false
		out = append(out, releaseLock)
	case !m.locked && holds && take && m.system == awake:
		m.locked = true
		out = append(out, takeLock)
	}
	if call {
		out = append(out, [...]action{awake: callResume, sleeping: callSuspend, shuttingDown: callStop}[m.ready])
	}
	return out
}

// holds reports whether the system has to wait for the daemon.
func (m *machine) holds(now time.Time) bool {
	switch {
	case !m.there, m.ready == shuttingDown && !m.running:
		return false
	case m.system == awake:
		return true
	}
	prepared := !m.running && m.ready == m.system
	return !prepared && now.Before(m.lockBy)
}

// deadline returns when a tick is due if nothing happens before.
func (m *machine) deadline() (time.Time, bool) { return m.lockBy, m.locked && m.system != awake }
