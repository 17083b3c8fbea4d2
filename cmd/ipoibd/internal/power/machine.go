package power

// system is what the system is about to do, as reported by logind.
type system uint8

const (
	awake system = iota // also without logind
	sleeping
	shuttingDown
)

// event is an input of machine.step, one of these.
type event any

type (
	found     struct{ system system } // logind is there
	lost      struct{}                // logind, or the bus, is gone
	denied    struct{}                // logind granted no inhibitor, or did not answer
	announced struct{ system system } // logind announces what the system is about to do
	returned  struct{}                // the running hook has returned
)

// action is an output of machine.step.
type action string

const (
	takeLock    action = "take lock"
	releaseLock action = "release lock"
	callSuspend action = "suspend"
	callResume  action = "resume"
	callStop    action = "stop"
	cancelHook  action = "cancel hook" // the one that runs
)

// machine decides when to call hooks and when to hold an inhibitor. It is ready to use; no
// logind is known at first.
type machine struct {
	there   bool // logind is on the bus
	system  system
	ready   system // the state for which the last hook prepares, or has prepared, the daemon
	running bool   // that hook has not returned
	locked  bool
}

// step handles one event and returns the actions to take, in order.
func (m *machine) step(ev event) (out []action) {
	was, take := m.system, false // take an inhibitor only when the answer may have changed
	switch ev := ev.(type) {
	case found:
		m.there, m.system, take = true, ev.system, true
	case lost:
		m.there, m.system = false, awake
	case denied:
		m.locked = false
	case announced:
		m.system = ev.system
	case returned:
		m.running = false
	}
	if m.system != was {
		take = true
		if m.system != awake && m.running && m.ready == awake {
			out = append(out, cancelHook)
		}
	}
	call := !m.running && m.ready != m.system && m.ready != shuttingDown
	if call {
		m.ready, m.running = m.system, true
	}
	switch holds := m.there && (m.running || m.system == awake && m.ready != shuttingDown); {
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
