package reset

import "time"

// Event is an input of a [Machine].
type Event struct {
	Kind    Kind
	Outcome Outcome // of Done
	Detail  string  // of Done
	// Unfinished, in Done, means that the device is gone and has to be brought back.
	Unfinished bool
}

// Kind is the kind of an [Event].
type Kind uint8

// Kinds of event.
const (
	Look     Kind = iota // the intent file may have changed, or a deadline has passed
	Want                 // the user requests a reset
	Released             // the answer to Release, unless Ended has come since: the user holds nothing of the device
	Done                 // the reset returned; OutcomeDenied, OutcomeHeld: nothing was done
	Opened               // the user has opened the device, so nothing is left of a reset that was cut short
	Close                // this process exits; the user holds nothing, and no reset is under way
	numKind
)

// Action is a message to the user.
type Action interface{ action() }

type (
	// Release asks the user to release the device, and then to report [Released].
	Release struct {
		// Intent is the record of the reset, for messages. It is idle if no other process may
		// use the device, or if the reset ends at once.
		Intent Record
	}
	// Ended says that a reset ended. The user may open the device again.
	Ended struct {
		Outcome Outcome
		Detail  string
		// Abandon is as in Reset, for a reset that another process held up for the grace
		// period: this process no longer waits for its users either.
		Abandon bool
	}
	// Reset resets the device. The answer is [Done].
	Reset struct {
		// Abandon says that users in this process have not released the device within
		// the grace period, and that the reset does not wait for them.
		Abandon bool
		// Complete says that an earlier reset was cut short: the device may be gone, and
		// this reset has to bring it back.
		Complete bool
	}
	// Silent says since when the process that leads a reset has made no progress.
	Silent struct{ Since time.Time }
	// Answers ends Silent.
	Answers struct{}
)

func (Release) action() {}
func (Ended) action()   {}
func (Reset) action()   {}
func (Silent) action()  {}
func (Answers) action() {}
