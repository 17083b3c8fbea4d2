package power

import "time"

// system is what the system is about to do, as logind says.
type system uint8

const (
	awake system = iota
	sleeping
	shuttingDown
)

// patience is how long a daemon stays suspended while nothing can report the
// wake-up.
const patience = 30 * time.Second

// event is an input of machine.step, one of these.
type event any

type (
	found    struct{ limit time.Duration } // logind is there, and waits so long for an inhibitor
	lost     struct{}                      // logind, or the bus, is gone
	denied   struct{}                      // logind granted no inhibitor, or did not answer
	told     struct{ system system }       // logind reports, or answers, what the system is about to do
	returned struct{}                      // the hook under way has returned
	tick     struct{}                      // time has passed
)

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

// hooks are those that prepare the daemon for what the system does.
var hooks = [...]action{awake: callResume, sleeping: callSuspend, shuttingDown: callStop}

// machine decides. Its zero value serves, and knows of no logind.
type machine struct {
	system  system
	ready   system // what the last hook prepares, or has prepared, the daemon for
	running bool   // that hook has not returned
	there   bool   // logind
	locked  bool
	denied  bool          // ask for no other inhibitor until things change
	limit   time.Duration // how long logind waits

	hookBy time.Time // when the hook should have returned
	lockBy time.Time // when the inhibitor goes at the latest
	wakeBy time.Time // when a deaf daemon assumes that the system is awake
}

// step takes one event and appends what is to be done, in order.
func (m *machine) step(now time.Time, ev event, out []action) []action {
	switch ev := ev.(type) {
	case found:
		m.there, m.denied, m.limit = true, false, ev.limit
	case lost:
		if m.there {
			m.wakeBy = now.Add(patience)
		}
		m.there = false
	case denied:
		m.locked, m.denied = false, true
	case told:
		if ev.system == m.system {
			break // a repetition moves no deadline
		}
		m.system, m.denied = ev.system, false
		m.hookBy, m.lockBy = now.Add(m.limit*8/10), now.Add(m.limit*9/10)
		if m.system != awake && m.running && m.ready == awake {
			out = append(out, cancelHook)
		}
	case returned:
		m.running = false
	case tick:
	}
	if m.deaf() && !now.Before(m.wakeBy) {
		m.system = awake
	}
	call := !m.running && m.ready != m.system && m.ready != shuttingDown
	if call {
		m.ready, m.running = m.system, true
	}
	// While the system prepares for something logind grants no inhibitor.
	switch holds := m.holds(now); {
	case m.locked && !holds:
		m.locked = false
		out = append(out, releaseLock)
	case !m.locked && !m.denied && m.system == awake && holds:
		m.locked = true
		out = append(out, takeLock)
	}
	if call {
		out = append(out, hooks[m.ready])
	}
	return out
}

// holds reports whether the system has to wait for the daemon.
func (m *machine) holds(now time.Time) bool {
	switch prepared := !m.running && m.ready == m.system; {
	case !m.there, m.ready == shuttingDown && !m.running:
		return false
	case m.system == awake:
		return true
	default:
		return !prepared && now.Before(m.lockBy)
	}
}

// deaf reports whether the daemon would miss the end of a sleep.
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
