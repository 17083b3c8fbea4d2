package qprecovery

// Reason says why a rung was entered: one name for log, metric, history and
// test.
type Reason uint8

// Reasons.
const (
	ReasonNone Reason = iota
	// Of a fault.
	ReasonFlushWithoutCause // a request was flushed, although the QP was not moved to ERR
	ReasonRequestError      // a work request failed
	ReasonQPError           // the QP reported an error
	ReasonCQError           // the CQ is in error
	ReasonDeviceError       // fatal event, EIO
	ReasonDeviceGone        // ENODEV
	// Of a freeze.
	ReasonFreezeSuspected // probes of the queue pair to itself stayed unanswered
	ReasonVerbStuck       // a verb that does not return
	ReasonFreezePersists  // suspected again, and probes on a fresh QP and CQ stayed unanswered
	// Of an escalation.
	ReasonVerbFailed  // a verb of the rung failed
	ReasonVerbTimeout // the rung did not end in time
	ReasonQueryFailed // the QP's state cannot be learnt
	ReasonRepeated    // more often than the rung's budget
	ReasonBackOff     // the pause before the next rebuild is over
	// Of the device.
	ReasonDeviceReset // the device is being reset or is lost
	ReasonDeviceBack  // the device is there again
	ReasonRemoved     // the device left the list of devices
	ReasonHeld        // others hold the device: it cannot be reset
	ReasonRetry       // the wait's next try
	ReasonGaveUp      // the wait for the device is over
	ReasonSuspended   // the system sleeps, or the operator ends the use of the device
	ReasonResumed     // that is over
	ReasonOperator    // by the operator's word
	// NumReason bounds the enumeration.
	NumReason
)

var reasonNames = [NumReason]string{
	"none", "flush_without_cause", "request_error", "qp_error", "cq_error", "device_error", "device_gone",
	"freeze_suspected", "verb_stuck", "freeze_persists",
	"verb_failed", "verb_timeout", "query_failed", "repeated", "back_off",
	"device_reset", "device_back", "removed", "held", "retry", "gave_up", "suspended", "resumed", "operator",
}

func (r Reason) String() string {
	if r >= NumReason {
		return "unknown"
	}
	return reasonNames[r]
}

// MarshalText writes the name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Rung is a step of the ladder, the moderate ones first.
type Rung uint8

// Rungs.
const (
	RungNone       Rung = iota // health, and the question what state the QP is in
	RungSuspend                // no medicine: the device is closed while it is not wanted
	RungResumeQP               // SQE -> RTS, what is posted stays
	RungResetQP                // RESET -> INIT -> RTR -> RTS: same number, receives posted anew
	RungRecreateQP             // another QP on the same CQs
	RungRebuildCQ              // QP, CQs, QP
	RungDevice                 // the device is let go, reset and opened again
	RungWait                   // the device is waited for
	RungGiveUp                 // nothing more is tried without the operator
	// NumRung bounds the enumeration.
	NumRung
)

var rungNames = [NumRung]string{
	"none", "suspend", "resume_qp", "reset_qp", "recreate_qp", "rebuild_cq", "reset_device", "wait_for_device", "give_up",
}

func (r Rung) String() string {
	if r >= NumRung {
		return "unknown"
	}
	return rungNames[r]
}

// MarshalText writes the name.
func (r Rung) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
