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

// Enumerations of the status; docs/status.schema.json has the same values.
var (
	InterfaceStates = []string{InterfaceDown, InterfaceWaiting, InterfaceUp, InterfaceRecovering, InterfaceFailed, InterfaceStopped}
	DeviceStates    = []string{DeviceOpen, "starting", "dropping", "pausing", "opening", "waiting", "given_up", "suspended"}
	NoticeKinds     = []string{
		NoticeDuplicateAddress, NoticeNAT, NoticeFirewall, NoticeUnresolved, NoticeSilent, NoticeSendBuffer,
		NoticeOneSocket, NoticeNoSegmentation, NoticePathMTU, NoticeNoIPv6, NoticeEventsLost,
	}
	HandleStates = []string{"none", "asked", "ready", "waiting", "refused"}
)
