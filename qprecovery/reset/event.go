package reset

import "time"

// ID numbers the resets that a machine tells its user of, from 1. The number in the
// file is another one, for messages: a file can be replaced.
type ID uint64

// Event is one of [Want], [Released], [Seen], [Claimed], [Taken], [ResetDone],
// [Tick], [Close].
type Event interface{ kind() kind }

type kind uint8

const (
	kindWant kind = iota
	kindReleased
	kindSeen
	kindClaimed
	kindTaken
	kindResetDone
	kindTick
	kindClose
	numKind
)

type (
	// Want asks for a reset.
	Want struct{}
	// Released says that this process holds nothing of the device.
	Released struct{ Reset ID }
	// Seen is the content of the intent file, after [Look] or after a change of it.
	Seen struct{ Record Record }
	// Claimed answers [Claim]. The record was read with the lock held.
	Claimed struct {
		Held   bool
		Record Record
	}
	// Taken answers [Share] and [Exclude].
	Taken struct {
		Held bool
		By   string // who holds it, where Exclude asked
	}
	// ResetDone says that the reset returned. OutcomeDenied: nothing was done, since
	// this process may not.
	ResetDone struct {
		Outcome Outcome
		Detail  string
	}
	// Tick says that time has passed.
	Tick struct{}
	// Close ends the machine. No reset is under way, and the user holds nothing.
	Close struct{}
)

func (Want) kind() kind      { return kindWant }
func (Released) kind() kind  { return kindReleased }
func (Seen) kind() kind      { return kindSeen }
func (Claimed) kind() kind   { return kindClaimed }
func (Taken) kind() kind     { return kindTaken }
func (ResetDone) kind() kind { return kindResetDone }
func (Tick) kind() kind      { return kindTick }
func (Close) kind() kind     { return kindClose }

// Action is a system call, which must not block, or a message to the user. The
// shell does the actions of a Step in order. It gives the answer to an action to
// Step before any other event, and does what comes of it last.
type Action interface{ action() }

type (
	// Look reads the intent file; the answer is Seen.
	Look struct{}
	// Claim tries for the lock on intent; the answer is Claimed.
	Claim struct{}
	// Disclaim releases it.
	Disclaim struct{}
	// Share tries for the shared lock on use, also in place of the exclusive one; the
	// answer is Taken.
	Share struct{}
	// Exclude tries for the exclusive lock on use; the answer is Taken.
	Exclude struct {
		Name bool // say in the answer who holds it, if it fails
	}
	// Drop releases the lock on use.
	Drop struct{}
	// Write writes the intent file.
	Write struct{ Record Record }

	// Open lets the user open the device for the first time.
	Open struct{}
	// Release has the user release the device, and then say Released.
	Release struct{ Reset ID }
	// Ended says that a reset ended; the user may open the device again.
	Ended struct {
		Reset   ID
		Outcome Outcome
		Detail  string
	}
	// Reset resets the device; the answer is ResetDone, later.
	Reset struct {
		// Abandon says that users in this process have not released the device within
		// the grace period, and are not waited for.
		Abandon bool
		// Complete says that an earlier reset was cut short: the device may be gone, and
		// it is for this reset to bring it back.
		Complete bool
	}
	// Silent says that the leader has not done what it should have, since a time.
	Silent struct{ Since time.Time }
	// Answers ends Silent.
	Answers struct{}
)

func (Look) action()     {}
func (Claim) action()    {}
func (Disclaim) action() {}
func (Share) action()    {}
func (Exclude) action()  {}
func (Drop) action()     {}
func (Write) action()    {}
func (Open) action()     {}
func (Release) action()  {}
func (Ended) action()    {}
func (Reset) action()    {}
func (Silent) action()   {}
func (Answers) action()  {}
