package qprecovery

import "time"

// State is a state of an interface's ladder.
type State uint8

// States.
const (
	// Idle: the shell has taken the interface down; there is nothing to
	// recover.
	Idle State = iota
	// Healthy: frames flow.
	Healthy
	// Querying: the state of a suspected QP is being queried.
	Querying
	// Proving: probes on a fresh QP and CQ test whether the device is frozen.
	Proving
	// Resuming, Resetting, Recreating, Rebuilding: the rung is running.
	Resuming
	Resetting
	Recreating
	Rebuilding
	// Pausing: backing off before the next rebuild.
	Pausing
	// Asking: a device reset was requested and has not begun.
	Asking
	// Releasing: all objects of the device are being closed.
	Releasing
	// Detached: no object of the device is held; waiting for the device.
	Detached
	// Starting: all objects are being created on the device, which is back.
	Starting
	// GivenUp: no longer waiting for the device.
	GivenUp
	numState
)

// cause is an input of the table.
type cause uint8

const (
	causeNone     cause = iota // no input: an error without effect
	causeSuspect               // the QP may not be in RTS any more
	causeCQ                    // the CQ is in error, or a freeze is suspected
	causeFreeze                // a freeze is suspected again
	causeDevice                // the device is in error, a verb hangs, or the operator requests a device reset
	causeDown                  // the device must be released
	causeUp                    // the device is available
	causeGaveUp                // the wait for the device has ended
	causeOrderQP               // the operator, or the shell after a change of the port, requests a reset of the QP
	causeOrderCQ               // the operator requests a rebuild of the CQs
	causeDone                  // the operation succeeded; of a query: found RTS; of a proof: not frozen
	causeFoundSQE              // the query found SQE
	causeFoundBad              // the query found ERR or another unexpected state
	causeProven                // the proof found the device frozen
	causeFailed                // the operation failed
	causeTimeout               // the operation did not end in time
	causeDue                   // the pause is over
	causeRepeated              // the rung's budget is spent; of a query: the budget of finding RTS
	causeAttached              // the shell created the objects itself
	numCause
)

// scopes are the scopes of errors by their causes.
var scopes = [numCause]Scope{causeSuspect: ScopeQueues, causeCQ: ScopeCQs, causeDevice: ScopeDevice}

// Time limits of the states that run no rung; the limits of rungs are in rung.go.
const (
	queryLimit   = time.Second      // one verb
	proveLimit   = 32 * time.Second // see below
	askLimit     = 10 * time.Second // then the reset is requested again
	releaseLimit = 5 * time.Second  // time for draining, as is common practice
)

// proveLimit is above 31.85 s, the longest duration of a proof on 8 lanes without a stuck verb: 5 s
// each to register memory and for query_port, which also wait for this machine; 0.8 s for
// each of create_qp, three modify_qp, destroy_qp and dereg_mr, and of create_cq and destroy_cq for each
// lane; 250 ms for each of three probes on the last lane, and of two on the others. A stuck verb ends
// the proof earlier, as an error of the device.

// states describes each state: its name, its rung, and the limit of its
// operation (0 if it has none).
var states = [numState]struct {
	name  string
	rung  Rung
	limit time.Duration
}{
	Idle:       {"idle", RungNone, 0},
	Healthy:    {"healthy", RungNone, 0},
	Querying:   {"querying", RungNone, queryLimit},
	Proving:    {"proving", RungNone, proveLimit},
	Resuming:   {"resuming", RungResumeQP, rungs[RungResumeQP].limit},
	Resetting:  {"resetting", RungResetQP, rungs[RungResetQP].limit},
	Recreating: {"recreating", RungRecreateQP, rungs[RungRecreateQP].limit},
	Rebuilding: {"rebuilding", RungRebuildCQ, rungs[RungRebuildCQ].limit},
	Pausing:    {"pausing", RungRebuildCQ, 0},
	Asking:     {"asking", RungDevice, 0},
	Releasing:  {"releasing", RungDevice, releaseLimit},
	Detached:   {"detached", RungDevice, 0},
	Starting:   {"starting", RungDevice, rungs[RungDevice].limit},
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

// Rung returns the rung that the state belongs to.
func (s State) Rung() Rung { return states[s].rung }

// operating reports whether an operation runs in the state.
func (s State) operating() bool { return states[s].limit > 0 }

// runs reports whether the operation of the state is its rung.
func (s State) runs() bool { return s.operating() && rungs[s.Rung()].state == s }

// outranks reports whether a transition to the state replaces a kept transition to another
// state. A higher rung outranks a lower one, and so does releasing a device, which must be
// given back before anything else can be done.
func (s State) outranks(other State) bool {
	return s.Rung() > other.Rung() || s == Releasing && other != Releasing
}

// row is one transition. Its action is the action of entering the state to.
type row struct {
	from State
	on   cause
	to   State
}

// rows are all transitions. An error enters at the rung of its own scope (R1, R2), and
// a failed rung leads to the next one (R6). If a proof fails for another reason than the
// device, such as a lack of memory, the freeze is not proven (R7). An error of the device
// during a proof is first applied as causeDevice. Stopped
// leads from every state to Idle, and is not in the table. A state without a row for a
// cause absorbs it. An external cause during an operation is kept until the operation
// has ended if its state outranks the one that is kept, and is absorbed otherwise: there
// are never two operations on one scope.
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
	return t
}
