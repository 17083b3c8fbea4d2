package qprecovery

// Reason is the reason for which a rung was entered. Logs, status, history and
// tests use the same name.
type Reason uint8

// Reasons.
const (
	ReasonNone Reason = iota
	// Faults.
	ReasonFlushWithoutCause // a request was flushed, although nothing moved the QP to ERR
	ReasonRequestError      // a work request failed
	ReasonQPError           // the QP reported an error
	ReasonCQError           // the CQ is in error
	ReasonDeviceError       // fatal event, EIO
	ReasonDeviceGone        // ENODEV
	// Freezes.
	ReasonFreezeSuspected // probes from the queue pair to itself were not answered
	ReasonVerbStuck       // a verb did not return
	ReasonFreezePersists  // suspected again, and probes on a fresh QP and CQ were not answered
	ReasonEventsLost      // completions arrive, but their events do not
	// Escalations.
	ReasonVerbFailed  // a verb of the rung failed
	ReasonVerbTimeout // the rung did not end in time
	ReasonQueryFailed // the QP's state could not be queried
	ReasonRepeated    // the rung's budget is spent
	ReasonBackOff     // the pause before the next rebuild is over
	// The device.
	ReasonDeviceReset // the device is being reset or is lost
	ReasonDeviceBack  // the device is back
	ReasonRemoved     // the device disappeared from the list of devices
	ReasonHeld        // other processes hold the device, so it cannot be reset
	ReasonRetry       // the next try while waiting
	ReasonGaveUp      // the wait for the device is over
	ReasonSuspended   // for system sleep, or by the operator
	ReasonResumed     // resumed after a suspension
	ReasonOperator    // requested by the operator
	ReasonRefused     // the host refused to open the device: another process uses it, or a permission is missing
	ReasonPortChanged // the shell requests a reset, because the port has changed
	// NumReason is the number of reasons.
	NumReason
)

var reasonNames = [NumReason]string{
	"none", "flush_without_cause", "request_error", "qp_error", "cq_error", "device_error", "device_gone",
	"freeze_suspected", "verb_stuck", "freeze_persists", "events_lost",
	"verb_failed", "verb_timeout", "query_failed", "repeated", "back_off",
	"device_reset", "device_back", "removed", "held", "retry", "gave_up", "suspended", "resumed", "operator",
	"refused", "port_changed",
}

func (r Reason) String() string {
	if r >= NumReason {
		return "unknown"
	}
	return reasonNames[r]
}

// ordered reports whether the rung was requested, and is not due to a fault.
func (r Reason) ordered() bool { return r == ReasonOperator || r == ReasonPortChanged }

// MarshalText writes the name.
func (r Reason) MarshalText() ([]byte, error) { return []byte(r.String()), nil }
