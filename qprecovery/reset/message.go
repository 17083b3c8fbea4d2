package reset

// ClientID names a client for as long as it lives, across connections and
// hosts. A client draws it at random; it is not 0.
type ClientID uint64

// ID names a reset. 0 is none. A server counts from a seed of its own, so the
// resets of different hosts have different names.
type ID uint64

// Message is one of [Hello], [Request], [Ready], [Leave], which a client sends,
// and [Roster], [Pending], [Ended], which a server sends.
type Message interface{ kind() kind }

// Hello registers a client: the first message of a connection.
type Hello struct {
	ID     ClientID
	Name   string   // for people: the interface, at most MaxName bytes
	Holds  bool     // it holds resources of the device
	Wants  bool     // it requested a reset and has not been told of one since
	Told   ID       // the reset that it was told is pending; 0: none
	Last   Ended    // the last reset that it was told the end of, without Holders
	Roster []Member // the clients it knows of, itself perhaps among them
}

// Request asks for a reset.
type Request struct{}

// Ready says that the client holds nothing of the device any more.
type Ready struct{ Reset ID }

// Leave says goodbye; the client holds nothing of the device any more.
type Leave struct{}

// Roster lists the clients outside of the host's process, and says who hosts. It
// answers Hello and follows each change.
type Roster struct {
	Host    string // for people: the name of the host's own client
	Members []Member
}

// Pending says that a reset is pending: release everything, then say [Ready].
type Pending struct{ Reset ID }

// Ended says that a reset ended, and how.
type Ended struct {
	Reset   ID
	Outcome Outcome
	Holders []Member // who was not ready; at most MaxHolders of them
}

// Member names a client to others.
type Member struct {
	ID   ClientID
	PID  int32 // as the host saw it; 0 where its PID namespace does not have it
	Name string
}

// Outcome says how a reset ended; its String is the reason in log, metric and
// history.
type Outcome uint8

// Outcomes.
const (
	OutcomeNone    Outcome = iota
	OutcomeDone            // the device was reset
	OutcomeFailed          // the reset verb failed
	OutcomeTimeout         // the reset did not end within its limit
	OutcomeHeld            // another process held the device beyond the grace period
	numOutcome
)

var outcomeNames = [numOutcome]string{"none", "done", "reset_failed", "reset_timeout", "held_by_process"}

func (o Outcome) String() string {
	if o < numOutcome {
		return outcomeNames[o]
	}
	return "unknown"
}

type kind uint8

const (
	kindHello kind = iota + 1
	kindRequest
	kindReady
	kindLeave
	kindRoster
	kindPending
	kindEnded
)

func (Hello) kind() kind   { return kindHello }
func (Request) kind() kind { return kindRequest }
func (Ready) kind() kind   { return kindReady }
func (Leave) kind() kind   { return kindLeave }
func (Roster) kind() kind  { return kindRoster }
func (Pending) kind() kind { return kindPending }
func (Ended) kind() kind   { return kindEnded }
