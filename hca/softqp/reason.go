package softqp

// Reason says what became of a packet or a request; all but Passed are drops
// or failures that the shell counts by [Reason.String].
type Reason uint8

// Reasons.
const (
	Passed         Reason = iota
	DropQPState           // the receive side does not run in this state
	DropPKey              // P_Key mismatch (IBA 10.9.3)
	DropQKey              // Q_Key mismatch (IBA 10.2.5)
	DropNoRecv            // no receive posted
	FailRecvLength        // the receive at the head is too short
	FailRecvAccess        // its memory may not be written
	DropPortDown          // send: the port is down
	DropNoSource          // send: the AH's GID entry is empty or of the other family
	FailSendLength        // send: longer than the GID's MaxPayload
	FailSendAccess        // send: its memory may not be read
	// NumReason bounds the enumeration for tables.
	NumReason
)

var reasonNames = [NumReason]string{
	"passed", "qp_state", "pkey", "qkey", "no_recv", "recv_length", "recv_access",
	"port_down", "no_source", "send_length", "send_access",
}

func (r Reason) String() string { return reasonNames[r] }
