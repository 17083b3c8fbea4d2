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
	"passed",
	"rx_drop_qp_state", "rx_drop_pkey", "rx_drop_qkey",
	"rx_drop_no_recv", "rx_drop_recv_length", "rx_drop_recv_access",
	"tx_drop_port_down", "tx_drop_no_source", "tx_drop_send_length", "tx_drop_send_access",
}

func (r Reason) String() string { return reasonNames[r] }
