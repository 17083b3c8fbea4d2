package control

import "ipoibd/hca/faults"

// Kinds of fault that the daemon itself injects; the other kinds are in hca/faults.
const (
	FaultReplug      = "replug"
	FaultReplugOther = "replug_other"
	FaultReindex     = "reset_changes_index"
	FaultClientSlow  = "client_slow"
	FaultClientDead  = "client_dead"
	FaultClear       = "clear"
)

// FaultKind is a kind of fault that can be requested.
type FaultKind struct {
	Name  string
	Text  string // its effect, for the operator
	Shell bool   // injected by the daemon itself: it strikes once, immediately
}

// faultTexts describes the kinds of hca/faults.
var faultTexts = [faults.NumKind]string{
	faults.SendErrorSQE:     "a send fails, and the queue pair goes to SQE",
	faults.SendFlushSQE:     "as send_error_sqe, but the failed send is reported only as flushed",
	faults.SendErrorErr:     "a send fails, and the queue pair goes to ERR",
	faults.SendFlushErr:     "as send_error_err, but the failed send is reported only as flushed",
	faults.RecvErrorErr:     "a receive fails, and the queue pair goes to ERR",
	faults.RecvFlushErr:     "as recv_error_err, but the failed receive is reported only as flushed",
	faults.RecvBadKey:       "a receive is posted to memory that the device cannot write, and fails when it is used",
	faults.ResetFails:       "a queue pair refuses to be reset",
	faults.CreateQPFails:    "a queue pair cannot be created",
	faults.CQOverrun:        "a completion queue overruns, and the device reports it",
	faults.CQError:          "the device reports an error of a completion queue that still works",
	faults.CQSmall:          "a completion queue of one entry is created and not polled, so the device overruns it",
	faults.SwallowedSend:    "a send never completes",
	faults.CompletionsStop:  "a completion queue stops delivering completions",
	faults.DeafReceive:      "a queue pair's receives stop completing",
	faults.VerbHangs:        "a verb does not return until the device is reset (--verb; default: any)",
	faults.VerbHangsForever: "a verb never returns, not even after a reset (--verb; default: any)",
	faults.VerbEIO:          "a verb fails with EIO, a fault of the device (--verb; default: any)",
	faults.VerbENOMEM:       "a verb fails with ENOMEM, as if descriptors or memory ran out (--verb; default: any)",
	faults.EventLost:        "an asynchronous event is lost",
	faults.DeviceFatal:      "the device reports a fatal error",
	faults.Unplug:           "the device is unplugged",
	faults.PortDown:         "the port goes down",
	faults.PortUp:           "the port comes back up",
	faults.GIDChange:        "the first GID disappears, or comes back",
	faults.PKeyChange:       "the first P_Key disappears, or comes back",
}

var shellKinds = []FaultKind{
	{FaultReplug, "the unplugged device comes back", true},
	{FaultReplugOther, "another device appears in its place", true},
	{FaultReindex, "the next reset changes the device's index, as if the device had been removed and added", true},
	{FaultClientSlow, "an interface becomes ready for a reset 2 s late", true},
	{FaultClientDead, "an interface never becomes ready for a reset", true},
	{FaultClear, "cancel all faults that have not struck yet", true},
}

// FaultKinds returns all kinds, faults of the device first.
func FaultKinds() []FaultKind {
	var kinds []FaultKind
	for _, k := range faults.Kinds() {
		kinds = append(kinds, FaultKind{Name: k.String(), Text: faultTexts[k]})
	}
	return append(kinds, shellKinds...)
}
