package control

import "ipoibd/hca/faults"

// FaultKind is a kind of fault that can be requested.
type FaultKind struct {
	Name string
	Text string // its effect, for the operator
}

// faultTexts describes the kinds, faults of the device first.
var faultTexts = [faults.NumName]string{
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
	faults.VerbHangs:        "a verb does not return until the device is reset or the fault is cleared (--verb; default: any)",
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
	faults.Replug:           "the unplugged device comes back",
	faults.ReplugOther:      "another device appears in its place",
	faults.Reindex:          "the next reset changes the device's index, as if the device had been removed and added",
	faults.ClientSlow:       "an interface becomes ready for a reset 2 s late",
	faults.ClientDead:       "an interface never becomes ready for a reset",
	faults.Clear:            "cancel all faults that have not struck yet, and let verbs held by verb_hangs return",
}

// FaultKinds returns all kinds.
func FaultKinds() (kinds []FaultKind) {
	for k, text := range faultTexts {
		kinds = append(kinds, FaultKind{faults.Kind(k).String(), text})
	}
	return kinds
}
