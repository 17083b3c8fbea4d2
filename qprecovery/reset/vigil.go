package reset

import "time"

const (
	// answerMargin is what a leader may take besides grace and limit.
	answerMargin = time.Second
	// lateStep tells a Step that came late from one in time: a process that was
	// stopped itself has not seen yet what the leader did meanwhile.
	lateStep = 100 * time.Millisecond
)

// vigil is a process's watch over a leader that may be stopped. It only reports: no
// other state depends on it.
type vigil struct {
	of     owed
	since  time.Time // when the present wait began
	due    time.Time // when the leader counts as silent; zero: it does, or owes nothing
	silent bool      // Silent was said
}

// owed is what a process waits for. It is another wait when one of these changes.
type owed struct {
	patience time.Duration // 0: nothing is owed
	number   uint64
	phase    Phase
	pid      uint32
}

// watch begins again when the leader does something, or owes something else.
func (m *Machine) watch() {
	var of owed
	switch {
	case m.state == StateUsing && m.wants:
		of = owed{patience: m.conf.Grace}
	case m.state == StateReleasing, m.state == StateWaiting && m.conf.Shared:
		of = owed{m.conf.Grace + m.conf.Limit + answerMargin, m.rec.Number, m.rec.Phase, m.rec.PID}
	}
	v := &m.vigil
	if of != v.of {
		if v.silent {
			m.emit(Answers{})
		}
		*v = vigil{of: of, since: m.now}
		if of.patience > 0 {
			v.due = m.now.Add(of.patience)
		}
	}
	switch late := m.now.Sub(v.due); {
	case v.due.IsZero() || late < 0:
	case late > lateStep:
		v.due = m.now.Add(answerMargin)
	default:
		v.due, v.silent = time.Time{}, true
		m.emit(Silent{v.since})
	}
}
