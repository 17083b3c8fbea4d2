package qprecovery

import "time"

// State is a state of an interface's ladder.
type State uint8

// States.
const (
	// Idle: the shell has taken the interface down; nothing is recovered.
	Idle State = iota
	// Healthy: frames flow.
	Healthy
	// Querying: a QP under suspicion is asked for its state.
	Querying
	// Proving: probes on a fresh QP and CQ show whether the device has frozen.
	Proving
	// Resuming, Resetting, Recreating, Rebuilding: the rung runs.
	Resuming
	Resetting
	Recreating
	Rebuilding
	// Pausing: nothing runs until the next rebuild.
	Pausing
	// Asking: a device reset was asked for and has not begun.
	Asking
	// Releasing: everything of the device is being closed.
	Releasing
	// Detached: nothing of the device is held; it is waited for.
	Detached
	// Starting: everything is made on the device that came back.
	Starting
	// GivenUp: the device is not waited for any more.
	GivenUp
	numState
)

// cause is what moves the table.
type cause uint8

const (
	causeNone     cause = iota
	causeSuspect        // the QP may not be in RTS any more
	causeCQ             // the CQ is void, or a freeze is suspected
	causeFreeze         // a freeze is suspected again
	causeDevice         // the device is in error, or a verb hangs
	causeDown           // the device is let go
	causeUp             // the device is there
	causeGaveUp         // the device is not waited for
	causeOrderQP        // the operator's word
	causeOrderCQ        //
	causeDone           // the operation succeeded; a query: it found RTS; a proof: not frozen
	causeFoundSQE       // the query found SQE
	causeFoundBad       // the query found ERR or an unexpected state
	causeProven         // the proof found the device frozen
	causeFailed         // the operation failed
	causeTimeout        // the operation has not ended in time
	causeDue            // the pause is over
	causeRepeated       // the rung's budget is spent; a query: that of finding RTS
	causeAttached       // by the shell
	causeStopped        // by the shell
	numCause
)

// Time limits of the states. A rung's is far above its goal (5-10 ms) and at
// most the bound of a verb that is stuck.
const (
	queryLimit    = time.Second      // one verb
	proveLimit    = 18 * time.Second // see below
	resetLimit    = time.Second      // three verbs and the receives
	recreateLimit = 2 * time.Second  // destroy and create besides
	rebuildLimit  = 3 * time.Second  // two CQs besides
	askLimit      = 10 * time.Second // the field's retry: then it is asked for again
	releaseLimit  = 5 * time.Second  // the field's drain time
	startLimit    = 10 * time.Second // PD and MRs, and RTR may be refused for a while
)

// proveLimit is above the sum of what a proof may take while none of its verbs is
// stuck, 17.15 s: 5 s each to register memory and for query_port, which wait for this
// machine besides the device; 0.8 s for each of create_cq, create_qp, three modify_qp,
// destroy_qp, destroy_cq and dereg_mr; 250 ms for each of three probes. A verb that is
// stuck ends the proof earlier, as an error of the device.

// states describes each state: its rung, the limit of its operation (0: it has
// none), its name.
var states = [numState]struct {
	name  string
	rung  Rung
	limit time.Duration
}{
	Idle:       {"idle", RungNone, 0},
	Healthy:    {"healthy", RungNone, 0},
	Querying:   {"querying", RungNone, queryLimit},
	Proving:    {"proving", RungNone, proveLimit},
	Resuming:   {"resuming", RungResumeQP, queryLimit},
	Resetting:  {"resetting", RungResetQP, resetLimit},
	Recreating: {"recreating", RungRecreateQP, recreateLimit},
	Rebuilding: {"rebuilding", RungRebuildCQ, rebuildLimit},
	Pausing:    {"pausing", RungRebuildCQ, 0},
	Asking:     {"asking", RungDevice, 0},
	Releasing:  {"releasing", RungDevice, releaseLimit},
	Detached:   {"detached", RungDevice, 0},
	Starting:   {"starting", RungDevice, startLimit},
	GivenUp:    {"given_up", RungGiveUp, 0},
}

func (s State) String() string {
	if s >= numState {
		return "unknown"
	}
	return states[s].name
}

// MarshalText writes the name.
func (s State) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Rung is the rung that the state is of.
func (s State) Rung() Rung { return states[s].rung }

// operating reports whether an operation runs in the state.
func (s State) operating() bool { return states[s].limit > 0 }

// row is one transition. The action is that of entering the state to.
type row struct {
	from State
	on   cause
	to   State
}

// rows are all transitions. A scope enters at its own rung (R1, R2), and a rung
// that fails leads to the next one (R6). If a proof fails for a reason that does not
// accuse the device, such as a lack of memory, the freeze is not proven (R7). A failure
// that accuses the device is applied as causeDevice first. Two transitions are not
// listed: Stopped leads from everywhere to Idle, and a state that lacks a row for a
// cause absorbs it. A cause from outside that meets an operation is kept until that one
// has ended, if it leads to a higher rung, and is absorbed otherwise: there are never
// two on one scope.
var rows = []row{
	{Idle, causeAttached, Healthy},

	{Healthy, causeAttached, Healthy},
	{Healthy, causeSuspect, Querying},
	{Healthy, causeOrderQP, Resetting},
	{Healthy, causeCQ, Rebuilding},
	{Healthy, causeFreeze, Proving},
	{Healthy, causeOrderCQ, Rebuilding},
	{Healthy, causeDevice, Asking},
	{Healthy, causeDown, Releasing},

	{Querying, causeDone, Healthy},
	{Querying, causeFoundSQE, Resuming},
	{Querying, causeFoundBad, Resetting},
	{Querying, causeFailed, Resetting},
	{Querying, causeTimeout, Resetting},
	{Querying, causeRepeated, Resetting},
	{Querying, causeOrderQP, Resetting},
	{Querying, causeCQ, Rebuilding},
	{Querying, causeOrderCQ, Rebuilding},
	{Querying, causeDevice, Asking},
	{Querying, causeDown, Releasing},

	{Proving, causeDone, Rebuilding},
	{Proving, causeProven, Asking},
	{Proving, causeFailed, Rebuilding},
	{Proving, causeTimeout, Asking},
	{Proving, causeOrderQP, Resetting},
	{Proving, causeCQ, Rebuilding},
	{Proving, causeOrderCQ, Rebuilding},
	{Proving, causeDevice, Asking},
	{Proving, causeDown, Releasing},

	{Resuming, causeDone, Healthy},
	{Resuming, causeFailed, Resetting},
	{Resuming, causeTimeout, Resetting},
	{Resuming, causeRepeated, Resetting},
	{Resuming, causeOrderQP, Resetting},
	{Resuming, causeCQ, Rebuilding},
	{Resuming, causeOrderCQ, Rebuilding},
	{Resuming, causeDevice, Asking},
	{Resuming, causeDown, Releasing},

	{Resetting, causeDone, Healthy},
	{Resetting, causeFailed, Recreating},
	{Resetting, causeTimeout, Recreating},
	{Resetting, causeRepeated, Recreating},
	{Resetting, causeCQ, Rebuilding},
	{Resetting, causeOrderCQ, Rebuilding},
	{Resetting, causeDevice, Asking},
	{Resetting, causeDown, Releasing},

	{Recreating, causeDone, Healthy},
	{Recreating, causeFailed, Rebuilding},
	{Recreating, causeTimeout, Rebuilding},
	{Recreating, causeRepeated, Rebuilding},
	{Recreating, causeCQ, Rebuilding},
	{Recreating, causeOrderCQ, Rebuilding},
	{Recreating, causeDevice, Asking},
	{Recreating, causeDown, Releasing},

	{Rebuilding, causeDone, Healthy},
	{Rebuilding, causeFailed, Asking},
	{Rebuilding, causeTimeout, Asking},
	{Rebuilding, causeRepeated, Pausing},
	{Rebuilding, causeDevice, Asking},
	{Rebuilding, causeDown, Releasing},

	{Pausing, causeDue, Rebuilding},
	{Pausing, causeOrderCQ, Rebuilding},
	{Pausing, causeDevice, Asking},
	{Pausing, causeDown, Releasing},

	{Asking, causeDue, Asking},
	{Asking, causeDown, Releasing},

	{Releasing, causeDone, Detached},
	{Releasing, causeFailed, Detached},
	{Releasing, causeTimeout, Detached},

	{Detached, causeUp, Starting},
	{Detached, causeGaveUp, GivenUp},

	{GivenUp, causeUp, Starting},

	{Starting, causeDone, Healthy},
	{Starting, causeFailed, Asking},
	{Starting, causeTimeout, Asking},
	{Starting, causeDown, Releasing},
}

// transitions is rows by state and cause.
var transitions = buildTransitions()

func buildTransitions() (t [numState][numCause]*row) {
	for i := range rows {
		r := &rows[i]
		t[r.from][r.on] = r
	}
	for s := range numState {
		t[s][causeStopped] = &row{s, causeStopped, Idle}
	}
	return t
}
