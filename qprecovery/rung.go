package qprecovery

import "time"

// Rung is a step of the ladder, in ascending order of severity: if a rung fails, the next
// one follows.
type Rung uint8

// Rungs.
const (
	RungNone       Rung = iota // healthy, or querying the QP's state
	RungSuspend                // not a repair: the device is closed while it is not wanted
	RungResumeQP               // SQE -> RTS; posted requests stay
	RungResetQP                // RESET -> INIT -> RTR -> RTS: same QPN, receives reposted
	RungRecreateQP             // a new QP on the same CQs
	RungRebuildCQ              // new CQs, and a new QP
	RungDevice                 // the device is released, reset and reopened
	RungWait                   // waiting for the device
	RungGiveUp                 // no further tries unless the operator requests one
	// NumRung is the number of rungs.
	NumRung
)

// Scope is the extent of an error or a repair. Each scope includes those before it.
type Scope uint8

// Scopes.
const (
	ScopeNothing Scope = iota // all objects and all posted requests stay
	ScopeQueues               // the QP's state and its posted requests
	ScopeQP                   // the QP, and therefore its number
	ScopeCQs                  // the CQs
	ScopeDevice               // everything on the device, including the context
	numScope
)

// allowance is how often a rung may be used within a window of time in health
// before its success no longer counts as a cure (R6). Costlier rungs have longer
// windows, because their effect is expected to last longer.
type allowance struct {
	uses   int // 0: without limit
	window time.Duration
}

// rungs describes each rung; table.go has the transitions between the states. To add a
// rung that an interface runs, add it here and to docs/status.schema.json, its state to
// table.go, and its repair to endpoint.Endpoint and to the run method of the interface.
var rungs = [NumRung]struct {
	name  string
	state State         // of the interface that runs the rung; Idle if there is none
	limit time.Duration // of running it: far above the target (5-10 ms)
	scope Scope         // of what the rung replaces
	order cause         // of the operator's command to the interface; causeNone if there is none
	allowance
}{
	// The allowance is for queries that find RTS.
	RungNone:    {name: "none", allowance: allowance{5, 10 * time.Second}},
	RungSuspend: {name: "suspend"},
	// One verb.
	RungResumeQP: {"resume_qp", Resuming, time.Second, ScopeNothing, causeNone, allowance{5, 10 * time.Second}},
	// modify_qp to RESET, INIT, RTR and RTS, and posting the receives. The allowance is the
	// "soon" of R2.
	RungResetQP: {"reset_qp", Resetting, time.Second, ScopeQueues, causeOrderQP, allowance{3, 10 * time.Second}},
	// Also destroys and creates the QP. Peers must relearn its number.
	RungRecreateQP: {"recreate_qp", Recreating, 2 * time.Second, ScopeQP, causeNone, allowance{3, time.Minute}},
	// Also destroys and creates the CQs. Then with back-off.
	RungRebuildCQ: {"rebuild_cq", Rebuilding, 3 * time.Second, ScopeCQs, causeOrderCQ, allowance{3, time.Minute}},
	// Also rebuilds PD and MRs, and RTR may be refused for a while. The device's ladder counts
	// the uses: three resets in a row, as is common practice.
	RungDevice: {"reset_device", Starting, 10 * time.Second, ScopeDevice, causeNone, allowance{3, 10 * time.Minute}},
	RungWait:   {name: "wait_for_device"},
	RungGiveUp: {name: "give_up"},
}

func (r Rung) String() string {
	if r >= NumRung {
		return "unknown"
	}
	return rungs[r].name
}

// MarshalText writes the name.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Replaces reports whether the rung replaces everything in a scope.
func (r Rung) Replaces(s Scope) bool { return rungs[r].scope >= s }
