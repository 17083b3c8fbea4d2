package qprecovery

import "time"

// DeviceState is a state of a device's ladder.
type DeviceState uint8

// States.
const (
	// DeviceHealthy: the device is open.
	DeviceHealthy DeviceState = iota
	// DeviceDropping: clients let go, the device is closed, to be opened again.
	DeviceDropping
	// DevicePausing: it is closed, and opened again after a back-off.
	DevicePausing
	// DeviceOpening: it is opened.
	DeviceOpening
	// DeviceReleasing: as DeviceDropping, for a device that is gone or that was
	// not let go before.
	DeviceReleasing
	// DeviceWaiting: it is closed and not there, or could not be opened.
	DeviceWaiting
	// DeviceRetrying: it is opened while its return is waited for.
	DeviceRetrying
	// DeviceGivenUp: the wait is over.
	DeviceGivenUp
	// DeviceSuspending: as DeviceDropping, until it is wanted again.
	DeviceSuspending
	// DeviceSuspended: it is closed and not wanted; nothing is due.
	DeviceSuspended
	numDeviceState
)

// deviceCause is what moves the table.
type deviceCause uint8

const (
	deviceCauseFault   deviceCause = iota // fatal, frozen, asked for, ordered
	deviceCauseRemoved                    // it left the list
	deviceCauseDone                       // the operation succeeded
	deviceCauseSpent                      // it succeeded, and there are too many resets
	deviceCauseFailed
	deviceCauseTimeout
	deviceCauseOthers  // we let go, others did not: there was no reset
	deviceCauseDue     // a pause is over, or the wait's next try
	deviceCauseHeld    // the wait's next try, with the device not let go yet
	deviceCauseGiveUp  // the wait is over
	deviceCauseRecover // the operator's word
	deviceCauseSuspend // it is not wanted any more
	deviceCauseResume  // it is wanted again, and to be had
	deviceCauseAway    // it is wanted again, and not to be had
	numDeviceCause
)

// openLimit bounds opening: a context, a PD and the tables of the ports.
const openLimit = 10 * time.Second

// deviceStates describes each state.
var deviceStates = [numDeviceState]struct {
	name      string
	rung      Rung
	operation bool
}{
	DeviceHealthy:   {"healthy", RungNone, false},
	DeviceDropping:  {"dropping", RungDevice, true},
	DevicePausing:   {"pausing", RungDevice, false},
	DeviceOpening:   {"opening", RungDevice, true},
	DeviceReleasing: {"releasing", RungWait, true},
	DeviceWaiting:   {"waiting", RungWait, false},
	DeviceRetrying:  {"retrying", RungWait, true},
	DeviceGivenUp:   {"given_up", RungGiveUp, false},

	DeviceSuspending: {"suspending", RungSuspend, true},
	DeviceSuspended:  {"suspended", RungSuspend, false},
}

func (s DeviceState) String() string {
	if s >= numDeviceState {
		return "unknown"
	}
	return deviceStates[s].name
}

// MarshalText writes the name.
func (s DeviceState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Rung is the rung that the state is of.
func (s DeviceState) Rung() Rung { return deviceStates[s].rung }

func (s DeviceState) operating() bool { return deviceStates[s].operation }

// deviceRow is one transition. The action is that of entering the state to.
type deviceRow struct {
	from DeviceState
	on   deviceCause
	to   DeviceState
}

// deviceRows are all transitions: one path for a reset, an unplug, a removal of
// the driver and a PCI error (R21). What has no row is absorbed; DeviceGivenUp is
// left by the operator only, DeviceSuspended by Resume only. As in an interface's
// ladder, what comes from outside during an operation waits for its end.
var deviceRows = []deviceRow{
	{DeviceHealthy, deviceCauseFault, DeviceDropping},
	{DeviceHealthy, deviceCauseRemoved, DeviceReleasing},

	{DeviceDropping, deviceCauseDone, DeviceOpening},
	{DeviceDropping, deviceCauseSpent, DevicePausing},
	{DeviceDropping, deviceCauseFailed, DeviceWaiting},
	{DeviceDropping, deviceCauseTimeout, DeviceWaiting},
	{DeviceDropping, deviceCauseOthers, DeviceWaiting},
	{DeviceDropping, deviceCauseRemoved, DeviceWaiting},

	{DevicePausing, deviceCauseDue, DeviceOpening},
	{DevicePausing, deviceCauseRecover, DeviceOpening},
	{DevicePausing, deviceCauseRemoved, DeviceWaiting},

	{DeviceOpening, deviceCauseDone, DeviceHealthy},
	{DeviceOpening, deviceCauseFailed, DeviceWaiting},
	{DeviceOpening, deviceCauseTimeout, DeviceWaiting},
	{DeviceOpening, deviceCauseRemoved, DeviceReleasing},

	{DeviceReleasing, deviceCauseDone, DeviceWaiting},
	{DeviceReleasing, deviceCauseFailed, DeviceWaiting},
	{DeviceReleasing, deviceCauseTimeout, DeviceWaiting},
	{DeviceReleasing, deviceCauseOthers, DeviceWaiting},

	{DeviceWaiting, deviceCauseDue, DeviceRetrying},
	{DeviceWaiting, deviceCauseHeld, DeviceReleasing},
	{DeviceWaiting, deviceCauseGiveUp, DeviceGivenUp},

	{DeviceRetrying, deviceCauseDone, DeviceHealthy},
	{DeviceRetrying, deviceCauseFailed, DeviceWaiting},
	{DeviceRetrying, deviceCauseTimeout, DeviceWaiting},
	{DeviceRetrying, deviceCauseRemoved, DeviceReleasing},

	{DeviceGivenUp, deviceCauseRecover, DeviceWaiting},

	{DeviceHealthy, deviceCauseSuspend, DeviceSuspending},
	{DevicePausing, deviceCauseSuspend, DeviceSuspended},
	{DeviceWaiting, deviceCauseSuspend, DeviceSuspended},

	{DeviceSuspending, deviceCauseDone, DeviceSuspended},
	{DeviceSuspending, deviceCauseFailed, DeviceSuspended},
	{DeviceSuspending, deviceCauseTimeout, DeviceSuspended},
	{DeviceSuspending, deviceCauseOthers, DeviceSuspended},

	{DeviceSuspended, deviceCauseResume, DeviceOpening},
	{DeviceSuspended, deviceCauseAway, DeviceWaiting},
}

var deviceTransitions = buildDeviceTransitions()

func buildDeviceTransitions() (t [numDeviceState][numDeviceCause]*deviceRow) {
	for i := range deviceRows {
		r := &deviceRows[i]
		t[r.from][r.on] = r
	}
	return t
}
