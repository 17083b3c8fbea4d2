package qprecovery

import "time"

// HCAState is a state of an [HCALadder].
type HCAState uint8

// States. A rung goes with each ([HCALadder.Rung]): closing a device for a reset and
// closing one that was removed are one state.
const (
	// HCAStarting: it was never open. It is opened; a failure is tried again after a
	// pause, and when the list of devices changes. There is no limit and no history.
	HCAStarting HCAState = iota
	// HCAHealthy: it is open and used, and checked every two seconds. In no other state
	// may anyone use it.
	HCAHealthy
	// HCADropping: its users release it, it is closed, and, where it is to be reset, the
	// coordinator resets it. The removal and the return of an instance belong to this
	// reset. Nothing is opened.
	HCADropping
	// HCAPausing: it was reset too often and stays closed for a while.
	HCAPausing
	// HCAOpening: it is opened, once no reset of others is pending and nothing of ours
	// is open.
	HCAOpening
	// HCAWaiting: it is closed and absent, or could not be reset or opened. It is tried
	// when it comes, and every ten seconds, until the wait is over.
	HCAWaiting
	// HCAGivenUp: the wait is over. Only the operator leads out.
	HCAGivenUp
	// HCASuspended: it is closed and not wanted. Nothing is due; only Resume leads out.
	HCASuspended
	numHCAState
)

var hcaStates = [numHCAState]string{
	"starting", "healthy", "dropping", "pausing", "opening", "waiting", "given_up", "suspended",
}

func (s HCAState) String() string {
	if s >= numHCAState {
		return "unknown"
	}
	return hcaStates[s]
}

// MarshalText writes the name.
func (s HCAState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// hcaCause moves the table. The first ones are events, the last ones are what a device
// that is closed allows next; see [HCALadder.verdict].
type hcaCause uint8

const (
	hcaFault   hcaCause = iota // an error, a request or an order that a reset answers
	hcaRemoved                 // the instance that is open left the list
	hcaSuspend                 // the instance that is open is not wanted
	hcaOpened                  // the opening succeeded
	hcaFailed                  // it failed, or took too long
	hcaGiveUp                  // the wait is over

	hcaUnwanted // it is suspended
	hcaUnborn   // it was never open
	hcaAbsent   // it is not in the list
	hcaHeld     // it has to be reset first
	hcaSpent    // too many resets: a pause is due
	hcaFree     // it may be opened
	numHCACause
)

// hcaDo is an action of a row.
type hcaDo uint8

const (
	doClose   hcaDo = iota // close the session
	doRequest              // request a reset
	doRefresh              // read the list, unless the device is in it
	doPause                // report the pause
	doGiveUp               // report the end of the wait
)

// hcaRow is one transition: in a state, a cause leads to a state and a rung, and has
// these actions. RungNone keeps the rung; Starting and Healthy have none.
type hcaRow struct {
	from HCAState
	on   hcaCause
	to   HCAState
	rung Rung
	do   []hcaDo
}

// hcaRows are all transitions. A reset, an unplug, a removal of the driver and a PCI
// error take one path: close, then start from scratch (R21). A cause without a row is
// absorbed. What comes from outside while the device is closed or opened changes the
// facts, and the verdict at the end of that goes by them.
var hcaRows = []hcaRow{
	{HCAStarting, hcaOpened, HCAHealthy, RungNone, nil},
	{HCAStarting, hcaFailed, HCAStarting, RungNone, nil},
	{HCAStarting, hcaSuspend, HCADropping, RungSuspend, []hcaDo{doClose}},
	{HCAStarting, hcaUnwanted, HCASuspended, RungSuspend, nil},

	{HCAHealthy, hcaFault, HCADropping, RungDevice, []hcaDo{doClose, doRequest}},
	{HCAHealthy, hcaRemoved, HCADropping, RungWait, []hcaDo{doClose}},
	{HCAHealthy, hcaSuspend, HCADropping, RungSuspend, []hcaDo{doClose}},

	{HCADropping, hcaUnwanted, HCASuspended, RungSuspend, nil},
	{HCADropping, hcaAbsent, HCAWaiting, RungNone, []hcaDo{doRefresh}},
	{HCADropping, hcaHeld, HCAWaiting, RungWait, nil},
	{HCADropping, hcaSpent, HCAPausing, RungNone, []hcaDo{doPause}},
	{HCADropping, hcaFree, HCAOpening, RungNone, nil},

	{HCAPausing, hcaUnwanted, HCASuspended, RungSuspend, nil},
	{HCAPausing, hcaAbsent, HCAWaiting, RungWait, []hcaDo{doRefresh}},
	{HCAPausing, hcaHeld, HCADropping, RungWait, []hcaDo{doClose, doRequest}},
	{HCAPausing, hcaFree, HCAOpening, RungNone, nil},

	{HCAOpening, hcaOpened, HCAHealthy, RungNone, nil},
	{HCAOpening, hcaRemoved, HCADropping, RungWait, []hcaDo{doClose}},
	{HCAOpening, hcaSuspend, HCADropping, RungSuspend, []hcaDo{doClose}},
	{HCAOpening, hcaFailed, HCAWaiting, RungWait, []hcaDo{doRefresh}},
	{HCAOpening, hcaUnwanted, HCASuspended, RungSuspend, nil},

	{HCAWaiting, hcaUnwanted, HCASuspended, RungSuspend, nil},
	{HCAWaiting, hcaAbsent, HCAWaiting, RungWait, []hcaDo{doRefresh}},
	{HCAWaiting, hcaHeld, HCADropping, RungWait, []hcaDo{doClose, doRequest}},
	{HCAWaiting, hcaSpent, HCAPausing, RungNone, []hcaDo{doPause}},
	{HCAWaiting, hcaFree, HCAOpening, RungNone, nil},
	{HCAWaiting, hcaGiveUp, HCAGivenUp, RungGiveUp, []hcaDo{doGiveUp}},

	{HCAGivenUp, hcaAbsent, HCAWaiting, RungWait, []hcaDo{doRefresh}},
	{HCAGivenUp, hcaHeld, HCADropping, RungWait, []hcaDo{doClose, doRequest}},
	{HCAGivenUp, hcaFree, HCAOpening, RungWait, nil},

	{HCASuspended, hcaUnborn, HCAStarting, RungNone, nil},
	{HCASuspended, hcaAbsent, HCAWaiting, RungWait, []hcaDo{doRefresh}},
	{HCASuspended, hcaHeld, HCADropping, RungWait, []hcaDo{doClose, doRequest}},
	{HCASuspended, hcaFree, HCAOpening, RungNone, nil},
}

var hcaTransitions = func() (t [numHCAState][numHCACause]*hcaRow) {
	for i := range hcaRows {
		r := &hcaRows[i]
		t[r.from][r.on] = r
	}
	return t
}()

// Timers of an [HCALadder], besides those of [HCAConfig].
//
//	starting  | the next try           | 1 s, doubled to 8 s
//	healthy   | the next check         | 2 s after the answer to the last one
//	dropping  | users are abandoned    | Grace; in a reset the coordinator says so
//	          | it counts as failed    | Grace and 10 s; with a reset ResetLimit besides
//	pausing   | it is opened           | 10 s, doubled to 5 min
//	opening   | it counts as failed    | 10 s
//	waiting   | the next try           | 10 s
//	          | it is given up         | GiveUpAfter, through all tries
const (
	// StartPause is the first pause between two tries to open a device that was never
	// open, and StartPauseMost the longest.
	StartPause     = time.Second
	StartPauseMost = 8 * time.Second
)
