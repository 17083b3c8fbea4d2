package softqp

// Reason is the outcome of a packet or a request. All but Passed are drops or failures,
// which the shell counts under the name [Reason.String].
type Reason uint8

// Reasons.
const (
	Passed         Reason = iota
	DropQPState           // the QP does not receive in this state
	DropPKey              // P_Key mismatch (IBA 10.9.3)
	DropQKey              // Q_Key mismatch (IBA 10.2.5)
	DropNoRecv            // no receive posted
	FailRecvLength        // the receive at the head is too short
	FailRecvAccess        // the memory of the receive may not be written
	DropPortDown          // send: the port is down
	DropNoSource          // send: the AH's GID entry is empty or of the other family
	FailSendLength        // send: longer than the GID's MaxPayload
	FailSendAccess        // send: the memory may not be read
	// NumReason is the number of reasons, for tables.
	NumReason
)

var reasonNames = [NumReason]string{
	"passed", "qp_state", "pkey", "qkey", "no_recv", "recv_length", "recv_access",
	"port_down", "no_source", "send_length", "send_access",
}

func (r Reason) String() string { return reasonNames[r] }
