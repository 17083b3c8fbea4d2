package qprecovery

// DeviceState is a state of a [DeviceLadder].
type DeviceState uint8

// States, with what each may do and its timers. A separate rung says why
// ([DeviceLadder.Rung]): for example, a device is closed in the same state for a reset and
// after a removal.
const (
	// DeviceStarting: it was never open and is being opened. If that fails because of the
	// device, it is reset like a device that was open. After another failure it is tried again
	// when the list of devices changes, and after a pause that doubles from 0.1 s to 10 s. There
	// is no limit and no history.
	DeviceStarting DeviceState = iota
	// DeviceHealthy: it is open and used, and checked every two seconds. In no other state
	// may anyone use it.
	DeviceHealthy
	// DeviceDropping: its users release it, it is closed, and it is reset if
	// necessary. The removal and the return of an instance belong to this reset. Nothing is
	// opened. Users are abandoned after the grace period; in a reset the agreement decides
	// when. The drop has failed ten seconds after the grace period, or with a reset ten
	// seconds after the sum of both limits.
	DeviceDropping
	// DevicePausing: it failed too often and stays closed for a pause that doubles from 10 s
	// to 5 min.
	DevicePausing
	// DeviceOpening: it is opened as soon as no reset by others is pending and this process
	// has nothing open. An opening that is not answered within two minutes is abandoned. One
	// that fails because of the device leads to a reset.
	DeviceOpening
	// DeviceWaiting: it is closed and absent, or could not be reset or opened. It is tried
	// when its entry in the list changes and every ten seconds, until the wait ends. After an
	// opening that failed the pauses double from 0.1 s to 10 s. A device that is present but dead
	// is reset after a minute, then with pauses that double up to 5 min.
	DeviceWaiting
	// DeviceGivenUp: the wait is over. Only a command of the operator leaves this state.
	DeviceGivenUp
	// DeviceSuspended: it is closed on request. No timer of the device runs, only that of the locks; only
	// Resume leaves this state.
	DeviceSuspended
	numDeviceState
)

var deviceStates = [numDeviceState]string{
	"starting", "healthy", "dropping", "pausing", "opening", "waiting", "given_up", "suspended",
}

func (s DeviceState) String() string {
	if s >= numDeviceState {
		return "unknown"
	}
	return deviceStates[s]
}

// opens reports whether the device is opened in this state.
func (s DeviceState) opens() bool { return s == DeviceStarting || s == DeviceOpening }

// MarshalText writes the name.
func (s DeviceState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// deviceCause is an input of the table. The first causes are events; the others are verdicts
// about a closed device (see [DeviceLadder.verdict]).
type deviceCause uint8

const (
	deviceCauseFault   deviceCause = iota // a failure of the device: it is to be reset
	deviceCauseOrdered                    // it is to be reset by the operator's command, or is reset by others
	deviceCauseRemoved                    // the open instance has left the list
	deviceCauseSuspend                    // the open device is to be suspended
	deviceCauseOpened                     // the opening succeeded
	deviceCauseFailed                     // it failed, but not because of the device
	deviceCauseGiveUp                     // the wait is over

	deviceCauseUnwanted // it is suspended
	deviceCauseUnborn   // it was never open
	deviceCauseAbsent   // it is not in the list
	deviceCauseHeld     // it must be reset first
	deviceCauseSpent    // too many resets: a pause is due
	deviceCauseFree     // it may be opened
	numDeviceCause
)

// deviceDo is an action of a row.
type deviceDo uint8

const (
	doClose   deviceDo = iota // close the session
	doRequest                 // request a reset
	doRefresh                 // read the list, unless the device is in it
	doPause                   // report the pause
	doGiveUp                  // report the end of the wait
)

// deviceRow is one transition: in a state, a cause leads to another state and rung, with
// these actions. RungNone keeps the rung; Starting and Healthy have no rung.
type deviceRow struct {
	from DeviceState
	on   deviceCause
	to   DeviceState
	rung Rung
	do   []deviceDo
}

// deviceRows are all transitions. A reset, an unplug, a removal of the driver and a PCI
// error take one path: close, then start from scratch (R21). A cause without a row is
// absorbed. Events that arrive while the device is being closed or opened only change the
// facts, on which the verdict at the end is based.
var deviceRows = []deviceRow{
	{DeviceStarting, deviceCauseFault, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceStarting, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceStarting, deviceCauseOpened, DeviceHealthy, RungNone, nil},
	{DeviceStarting, deviceCauseFailed, DeviceStarting, RungNone, nil},
	{DeviceStarting, deviceCauseSuspend, DeviceDropping, RungSuspend, []deviceDo{doClose}},
	{DeviceStarting, deviceCauseUnwanted, DeviceSuspended, RungSuspend, nil},

	{DeviceHealthy, deviceCauseFault, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceHealthy, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceHealthy, deviceCauseRemoved, DeviceDropping, RungWait, []deviceDo{doClose}},
	{DeviceHealthy, deviceCauseSuspend, DeviceDropping, RungSuspend, []deviceDo{doClose}},

	{DeviceDropping, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceDropping, deviceCauseUnwanted, DeviceSuspended, RungSuspend, nil},
	{DeviceDropping, deviceCauseAbsent, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DeviceDropping, deviceCauseHeld, DeviceWaiting, RungWait, nil},
	{DeviceDropping, deviceCauseSpent, DevicePausing, RungNone, []deviceDo{doPause}},
	{DeviceDropping, deviceCauseFree, DeviceOpening, RungNone, nil},

	{DevicePausing, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DevicePausing, deviceCauseUnwanted, DeviceSuspended, RungSuspend, nil},
	{DevicePausing, deviceCauseAbsent, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DevicePausing, deviceCauseHeld, DeviceDropping, RungWait, []deviceDo{doClose, doRequest}},
	{DevicePausing, deviceCauseFree, DeviceOpening, RungNone, nil},

	{DeviceOpening, deviceCauseFault, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceOpening, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceOpening, deviceCauseOpened, DeviceHealthy, RungNone, nil},
	{DeviceOpening, deviceCauseRemoved, DeviceDropping, RungWait, []deviceDo{doClose}},
	{DeviceOpening, deviceCauseSuspend, DeviceDropping, RungSuspend, []deviceDo{doClose}},
	{DeviceOpening, deviceCauseFailed, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DeviceOpening, deviceCauseUnwanted, DeviceSuspended, RungSuspend, nil},

	{DeviceWaiting, deviceCauseFault, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceWaiting, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceWaiting, deviceCauseUnwanted, DeviceSuspended, RungSuspend, nil},
	{DeviceWaiting, deviceCauseAbsent, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DeviceWaiting, deviceCauseHeld, DeviceDropping, RungWait, []deviceDo{doClose, doRequest}},
	{DeviceWaiting, deviceCauseSpent, DevicePausing, RungNone, []deviceDo{doPause}},
	{DeviceWaiting, deviceCauseFree, DeviceOpening, RungNone, nil},
	{DeviceWaiting, deviceCauseGiveUp, DeviceGivenUp, RungGiveUp, []deviceDo{doGiveUp}},

	{DeviceGivenUp, deviceCauseOrdered, DeviceDropping, RungDevice, []deviceDo{doClose, doRequest}},
	{DeviceGivenUp, deviceCauseAbsent, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DeviceGivenUp, deviceCauseHeld, DeviceDropping, RungWait, []deviceDo{doClose, doRequest}},
	{DeviceGivenUp, deviceCauseFree, DeviceOpening, RungWait, nil},

	{DeviceSuspended, deviceCauseUnborn, DeviceStarting, RungNone, nil},
	{DeviceSuspended, deviceCauseAbsent, DeviceWaiting, RungWait, []deviceDo{doRefresh}},
	{DeviceSuspended, deviceCauseHeld, DeviceDropping, RungWait, []deviceDo{doClose, doRequest}},
	{DeviceSuspended, deviceCauseFree, DeviceOpening, RungNone, nil},
}

var deviceTransitions = func() (t [numDeviceState][numDeviceCause]*deviceRow) {
	for i := range deviceRows {
		r := &deviceRows[i]
		t[r.from][r.on] = r
	}
	return t
}()
