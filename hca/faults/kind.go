package faults

import (
	"fmt"

	"ipoibd/hca"
)

// Kind is a kind of fault.
type Kind uint8

// Kinds of fault.
const (
	SendErrorSQE     Kind = iota // a send fails, the QP goes to SQE
	SendFlushSQE                 // like SendErrorSQE, but reported only as flushed
	SendErrorErr                 // a send fails, the QP goes to ERR
	SendFlushErr                 // like SendErrorErr, but reported only as flushed
	RecvErrorErr                 // a receive fails, the QP goes to ERR
	RecvFlushErr                 // like RecvErrorErr, but reported only as flushed
	RecvBadKey                   // a receive is posted with an invalid L_Key
	ResetFails                   // Modify to RESET returns ErrInvalid
	CreateQPFails                // CreateQP returns ErrNoMemory
	CQOverrun                    // the CQ stops working, and its event is reported
	CQError                      // only the event CQ_ERR is reported
	CQSmall                      // a CQ is created too small, and not polled
	SwallowedSend                // a send never completes
	CompletionsStop              // a CQ stops delivering completions
	DeafReceive                  // a QP's receives stop completing
	VerbHangs                    // a verb does not return until the device is reset
	VerbHangsForever             // a verb never returns, not even after a reset
	VerbEIO                      // a verb returns ErrIO
	VerbENOMEM                   // a verb returns ErrNoMemory
	EventLost                    // an asynchronous event is not delivered
	DeviceFatal                  // DEVICE_FATAL; the device returns ErrIO
	Unplug                       // like DeviceFatal, and the device is gone
	PortDown                     // PORT_ERR; the port reports that it is down
	PortUp                       // PORT_ACTIVE; the port reports its real state
	GIDChange                    // GID_CHANGE; the first GID disappears or comes back
	PKeyChange                   // PKEY_CHANGE; the first P_Key disappears or comes back
	// NumKind is the number of kinds that a Device injects.
	NumKind
)

// Kinds of fault that only the program around a Device can inject. They fire once, immediately.
const (
	Replug      Kind = NumKind + iota // the unplugged device comes back
	ReplugOther                       // another device comes in its place
	Reindex                           // the next reset changes the index of the device
	ClientSlow                        // a user of the device is late to release it for the next reset
	ClientDead                        // a user of the device never releases it for the next reset
	Clear                             // all faults that have not fired are withdrawn
	// NumName is the number of kinds with a name.
	NumName
)

var names = [NumName]string{
	"send_error_sqe", "send_flush_sqe", "send_error_err", "send_flush_err",
	"recv_error_err", "recv_flush_err", "recv_bad_key",
	"reset_fails", "create_qp_fails", "cq_overrun", "cq_error", "cq_small",
	"swallowed_send", "completions_stop", "deaf_receive",
	"verb_hangs", "verb_hangs_forever", "verb_eio", "verb_enomem", "event_lost",
	"device_fatal", "unplug", "port_down", "port_up", "gid_change", "pkey_change",
	"replug", "replug_other", "reset_changes_index", "client_slow", "client_dead", "clear",
}

func (k Kind) String() string {
	if k >= NumName {
		return fmt.Sprintf("fault %d", uint8(k))
	}
	return names[k]
}

// Kinds returns the kinds that a Device injects.
func Kinds() []Kind {
	out := make([]Kind, NumKind)
	for i := range out {
		out[i] = Kind(i)
	}
	return out
}

// ParseKind returns the kind with this name, or hca.ErrInvalid.
func ParseKind(name string) (Kind, error) {
	for k, n := range names {
		if n == name {
			return Kind(k), nil
		}
	}
	return 0, fmt.Errorf("%w: unknown fault %q", hca.ErrInvalid, name)
}

// instant reports whether Inject itself is the occasion of this kind.
func (k Kind) instant() bool { return k >= DeviceFatal && k < NumKind }

// OfVerb reports whether a fault of this kind may name a verb.
func (k Kind) OfVerb() bool { return k >= VerbHangs && k <= VerbENOMEM }

// toErr reports whether the fault itself moves the QP to ERR.
func (k Kind) toErr() bool { return k >= SendErrorErr && k <= RecvFlushErr }

// silent reports whether the failed request is reported as flushed.
func (k Kind) silent() bool { return k == SendFlushSQE || k == SendFlushErr || k == RecvFlushErr }
