package reset

import (
	"cmp"
	"time"
)

// Defaults of a [Config].
const (
	DefaultGrace  = 60 * time.Second // what the field gives a client to let go
	DefaultLimit  = 30 * time.Second // a reset that takes 300 times its 100 ms is stuck
	DefaultSettle = 2 * time.Second  // four times retryMax: everybody has dialed again
)

// Config configures a [Server]. Zero durations are the defaults.
type Config struct {
	// Seed is drawn at random: resets are numbered from it.
	Seed uint64
	// Grace is how long a reset waits for clients that are not ready.
	Grace time.Duration
	// Limit is how long the reset of the device itself may take.
	Limit time.Duration
	// Settle is how long a new host lets clients come back before it resets.
	Settle time.Duration
}

func (c Config) normal() Config {
	c.Grace = cmp.Or(c.Grace, DefaultGrace)
	c.Limit = cmp.Or(c.Limit, DefaultLimit)
	c.Settle = cmp.Or(c.Settle, DefaultSettle)
	return c
}

// Phase is the state of a [Server].
type Phase uint8

// Phases; doc.go has the table of transitions.
const (
	PhaseIdle      Phase = iota // clients use the device; no reset may be done
	PhasePending                // clients release; the device is not touched
	PhaseResetting              // the device is being reset; nobody opens it
	numPhase
)

var phaseNames = [numPhase]string{"idle", "pending", "resetting"}

func (p Phase) String() string {
	if p < numPhase {
		return phaseNames[p]
	}
	return "unknown"
}

// Server is the host's side of the coordinator. It is passive: one goroutine
// calls it. Make one with [NewServer].
type Server struct {
	conf    Config
	clients clients

	phase    Phase
	resetID  ID        // of the reset under way, or the last one
	deadline time.Time // end of the grace period or of the reset limit; zero in idle
	settleAt time.Time // when the settle time ends; zero: it has
	forgetAt time.Time // when inherited clients are forgotten; zero: there are none, or a reset will

	roster Roster // as last published

	now time.Time // of the Step under way
	out []Action  // of the Step under way
}

// NewServer returns the server of a host that begins at now.
func NewServer(now time.Time, conf Config) *Server {
	conf = conf.normal()
	return &Server{conf: conf, resetID: ID(conf.Seed), settleAt: now.Add(conf.Settle)}
}

// Step applies an event at time now and appends what is to be done, in order, to
// out. Time must not run backwards from call to call. Step never blocks and
// keeps no reference to ev or out.
func (s *Server) Step(now time.Time, ev Event, out []Action) []Action {
	s.now, s.out = now, out
	s.expire()
	s.apply(ev)
	s.advance()
	out, s.out = s.out, nil
	return out
}

// NextDeadline returns when Step must be called at the latest; false: not before
// the next event.
func (s *Server) NextDeadline() (time.Time, bool) {
	var first time.Time
	for _, at := range [...]time.Time{s.deadline, s.settleAt, s.forgetAt} {
		if !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first, !first.IsZero()
}

// Phase returns the phase and the number of the reset under way, 0 in idle.
func (s *Server) Phase() (Phase, ID) {
	if s.phase == PhaseIdle {
		return PhaseIdle, 0
	}
	return s.phase, s.resetID
}

func (s *Server) apply(ev Event) {
	switch ev := ev.(type) {
	case Received:
		s.receive(ev)
	case Lost:
		s.lost(ev.Conn)
	case Died:
		s.died(ev.Conn)
	case ResetDone:
		s.resetDone(ev)
	case Tick:
	}
}

func (s *Server) emit(a Action) { s.out = append(s.out, a) }

// expire does what has become due.
func (s *Server) expire() {
	if s.due(&s.settleAt) {
		s.settleAt = time.Time{}
	}
	if s.due(&s.forgetAt) {
		s.forgetInherited()
		s.publish()
	}
	if s.due(&s.deadline) {
		s.overdue()
	}
}

// due reports whether a deadline has passed, and clears it.
func (s *Server) due(at *time.Time) bool {
	if at.IsZero() || at.After(s.now) {
		return false
	}
	*at = time.Time{}
	return true
}

// overdue ends a phase that took its whole time.
func (s *Server) overdue() {
	if s.phase == PhaseResetting {
		s.becomeIdle(Ended{Outcome: OutcomeTimeout})
		return
	}
	late := s.clients.unready()
	if foreign := foreignOf(late); len(foreign) > 0 {
		s.becomeIdle(Ended{Outcome: OutcomeHeld, Holders: foreign[:min(len(foreign), MaxHolders)]})
		return
	}
	s.becomeResetting(late)
}

// advance leaves pending when everybody is ready.
func (s *Server) advance() {
	if s.phase == PhasePending && s.settleAt.IsZero() && len(s.clients.unready()) == 0 {
		s.becomeResetting(nil)
	}
}

// request begins a reset, or joins the one that is under way.
func (s *Server) request() {
	if s.phase == PhaseIdle {
		s.becomePending()
	}
}

func (s *Server) becomePending() {
	s.phase = PhasePending
	s.resetID = s.nextID()
	s.deadline = s.now.Add(s.conf.Grace)
	s.forgetAt = time.Time{}
	s.tellEverybody()
}

// nextID skips 0, which means none.
func (s *Server) nextID() ID { return max(s.resetID+1, 1) }

func (s *Server) becomeResetting(without []*client) {
	s.phase = PhaseResetting
	s.deadline = s.now.Add(s.conf.Limit)
	s.emit(Reset{Reset: s.resetID, Without: membersOf(without)})
}

// becomeIdle concludes the reset for everybody who was told of it. Who is not
// there will hear of it on coming back.
func (s *Server) becomeIdle(end Ended) {
	s.phase = PhaseIdle
	s.deadline = time.Time{}
	s.emit(Concluded{Ended{Reset: s.resetID, Outcome: end.Outcome, Holders: end.Holders}})
	for _, c := range s.clients {
		if c.told != 0 {
			s.tellEnded(c, end)
		}
	}
	s.forgetInherited()
	s.publish()
}

// resetDone takes the shell's report; one that comes after the limit is late.
func (s *Server) resetDone(ev ResetDone) {
	if s.phase != PhaseResetting || ev.Reset != s.resetID {
		return
	}
	end := Ended{Outcome: OutcomeDone}
	if ev.Failed {
		end.Outcome = OutcomeFailed
	}
	s.becomeIdle(end)
}
