package control

import (
	"slices"

	"ipoibd/hca/faults"
)

// Kinds of fault that the daemon's shell injects, besides those of hca/faults.
const (
	FaultReplug      = "replug"
	FaultReplugOther = "replug_other"
	FaultReindex     = "reset_changes_index"
	FaultClientSlow  = "client_slow"
	FaultClientDead  = "client_dead"
	FaultClear       = "clear"
)

// FaultKind is a kind of fault that can be ordered.
type FaultKind struct {
	Name  string
	Text  string // what it does, for people
	Shell bool   // of the daemon's shell: it strikes at once, and once
}

// faultTexts say what the kinds of hca/faults do.
var faultTexts = [faults.NumKind]string{
	faults.SendErrorSQE:     "a send fails, the queue pair goes to SQE",
	faults.SendFlushSQE:     "as send_error_sqe, but its completion says only that it was flushed",
	faults.SendErrorErr:     "a send fails, the queue pair goes to ERR",
	faults.SendFlushErr:     "as send_error_err, but its completion says only that it was flushed",
	faults.RecvErrorErr:     "a receive fails, the queue pair goes to ERR",
	faults.RecvFlushErr:     "as recv_error_err, but its completion says only that it was flushed",
	faults.RecvBadKey:       "a receive is posted that the device cannot write to, which fails it in its turn",
	faults.ResetFails:       "a queue pair refuses to be reset",
	faults.CreateQPFails:    "a queue pair cannot be created",
	faults.CQOverrun:        "a completion queue overruns, with its event",
	faults.CQError:          "the event of a completion queue's error, alone",
	faults.CQSmall:          "a completion queue is made with one entry and not polled, so that the device overruns it",
	faults.SwallowedSend:    "a send never completes",
	faults.CompletionsStop:  "a completion queue gives nothing any more",
	faults.DeafReceive:      "a queue pair's receives give nothing any more",
	faults.VerbHangs:        "a verb does not return until the device is reset (--verb; any without)",
	faults.VerbHangsForever: "a verb does not return, whatever is reset (--verb; any without)",
	faults.DeviceFatal:      "the device reports a fatal error",
	faults.Unplug:           "the device is pulled out",
	faults.PortDown:         "the port goes down",
	faults.PortUp:           "the port is what it is again",
	faults.GIDChange:        "the first GID goes, or comes back",
	faults.PKeyChange:       "the first P_Key goes, or comes back",
}

var shellKinds = []FaultKind{
	{FaultReplug, "the device that was pulled out comes back", true},
	{FaultReplugOther, "another device comes in its place", true},
	{FaultReindex, "the next reset gives the device another index, as one has that was removed and added", true},
	{FaultClientSlow, "an interface is ready for a reset 2 s late", true},
	{FaultClientDead, "an interface is never ready for a reset", true},
	{FaultClear, "what was planned and has not struck is withdrawn", true},
}

// FaultKinds returns all kinds, those of the device first.
func FaultKinds() []FaultKind {
	var kinds []FaultKind
	for _, k := range faults.Kinds() {
		kinds = append(kinds, FaultKind{Name: k.String(), Text: faultTexts[k]})
	}
	return append(kinds, shellKinds...)
}

func findKind(name string) (FaultKind, bool) {
	kinds := FaultKinds()
	i := slices.IndexFunc(kinds, func(k FaultKind) bool { return k.Name == name })
	if i < 0 {
		return FaultKind{}, false
	}
	return kinds[i], true
}
