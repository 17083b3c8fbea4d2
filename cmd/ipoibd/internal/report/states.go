package report

// Enumerations of the status; docs/status.schema.json has the same values.
var (
	InterfaceStates = []string{"down", "waiting", "up", "recovering", "failed", "stopped"}
	DeviceStates    = []string{DeviceOpen, "starting", "dropping", "pausing", "opening", "waiting", "given_up", "suspended"}
	NoticeKinds     = []string{
		NoticeDuplicateAddress, NoticeNAT, NoticeFirewall, NoticeUnresolved, NoticeSilent, NoticeSendBuffer, NoticePortShared, NoticePortUnshared,
		NoticePortOpen, NoticeJoined, NoticeOneSocket, NoticeNoSegmentation, NoticePathMTU, NoticeNoIPv6,
	}
	HandleStates = []string{"none", "asked", "ready", "waiting", "refused"}
)
