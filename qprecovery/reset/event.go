package reset

// Conn names a connection; the shell never uses a number twice.
type Conn uint64

// Event is one of [Received], [Lost], [Died], [ResetDone], [Tick].
type Event interface{ event() }

// Received is a message from a connection, whole and decoded.
type Received struct {
	Conn Conn
	Peer Peer
	Msg  Message
}

// Peer is what the shell itself knows of the other end.
type Peer struct {
	PID   int32 // SO_PEERCRED; 0 where this PID namespace does not have it
	Local bool  // a client of this very process: it lives and dies with the host
}

// Lost says that a connection is gone, by either side; a message of which only a
// part came is dropped with it.
type Lost struct{ Conn Conn }

// Died says that the process behind a connection, which may be lost already, has
// ended (pidfd): it holds nothing any more.
type Died struct{ Conn Conn }

// ResetDone says that the reset asked for by [Reset] ended.
type ResetDone struct {
	Reset  ID
	Failed bool
}

// Tick only lets time pass.
type Tick struct{}

func (Received) event()  {}
func (Lost) event()      {}
func (Died) event()      {}
func (ResetDone) event() {}
func (Tick) event()      {}

// Action is one of [Send], [Drop], [Reset], [Concluded].
type Action interface{ action() }

// Send sends a message. If that fails the shell drops the connection and reports
// [Lost].
type Send struct {
	Conn Conn
	Msg  Message
}

// Drop closes a connection; no Lost is needed for it.
type Drop struct {
	Conn   Conn
	Reason DropReason
}

// Reset resets the device, then the shell reports [ResetDone]. The clients in
// Without, all of this process, were not ready: their handles become zombies.
type Reset struct {
	Reset   ID
	Without []Member
}

// Concluded is for the history: how a reset ended.
type Concluded struct{ Ended }

func (Send) action()      {}
func (Drop) action()      {}
func (Reset) action()     {}
func (Concluded) action() {}

// DropReason says why a connection is closed, in log and metric.
type DropReason uint8

// Drop reasons.
const (
	DropProtocol DropReason = iota // a message that has no place here
	DropFull                       // MaxMembers are there
	DropReplaced                   // the client has come back on another connection
	DropStolen                     // the client is known in another process
	DropLeft                       // the client said goodbye
	numDropReason
)

var dropNames = [numDropReason]string{"protocol", "too_many_clients", "replaced", "stolen_id", "left"}

func (r DropReason) String() string {
	if r < numDropReason {
		return dropNames[r]
	}
	return "unknown"
}
