package report

// States of an interface.
const (
	InterfaceDown       = "down"
	InterfaceWaiting    = "waiting" // without a queue pair, or without a carrier because of another process
	InterfaceUp         = "up"
	InterfaceRecovering = "recovering" // the queue pair does not work, and a rung of recovery runs or waits
	InterfaceFailed     = "failed"     // it has ended by itself
	InterfaceStopped    = "stopped"    // the daemon has ended it
)

// Reasons of the states down, waiting and failed. A recovery has a reason of qprecovery, and
// the other states have none.
const (
	ReasonNone      = "none"
	ReasonStarting  = "starting"        // ib0 was not examined yet
	ReasonAdminDown = "admin_down"      // the operator set ib0 down
	ReasonDevice    = "device"          // the device is not open
	ReasonPort      = "port"            // the port is not usable as configured
	ReasonQueuePair = "queue_pair"      // the queue pair cannot be opened; it is tried again
	ReasonForeign   = "foreign_process" // another process has attached to ib0
	ReasonLost      = "lost"            // ib0 was deleted, moved out of reach, cannot be watched, or could not be rebuilt
)

// Enumerations of the status; docs/status.schema.json has the same values.
var (
	InterfaceStates = []string{
		InterfaceDown, InterfaceWaiting, InterfaceUp, InterfaceRecovering, InterfaceFailed, InterfaceStopped,
	}
	DeviceStates = []string{
		DeviceOpen, "starting", "dropping", "pausing", "opening", "waiting", "given_up", "suspended",
	}
	HandleStates = []string{"none", "asked", "ready", "waiting", "refused"}
)
