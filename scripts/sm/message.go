package sm

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ibsim's messages (ibsim 0.10, sim.h): datagrams in the byte order of the machine, except for what the network of a
// real subnet would see.
const (
	controlLen  = 80 // magic 4, client 4, type 4, length 4, data 64
	controlData = 16
	dataLen     = 288 // DLID 4, SLID 4, dest. QP 4, source QP 4, status 4, reserved 4, length 8, MAD 256
	magic       = 0xdeadbeef
)

// Types of control messages.
const (
	typeError      = 0
	typeConnect    = 1
	typeDisconnect = 2
	typePortInfo   = 8
	typePKeys      = 10
)

// Offsets in the data of a CONNECT: a number of the client's choice, and the node that it attaches to.
const (
	offClient  = 0
	offNode    = 12
	connectLen = 44
)

// madLen is the length of a management packet in bytes (IBA 13.4.2).
const madLen = 256

// errRefused means that ibsim answered a control message with an error.
var errRefused = errors.New("ibsim refused the message")

// controlMessage returns a control message of a client.
func controlMessage(client uint32, kind int, data []byte) []byte {
	b := make([]byte, controlLen)
	binary.NativeEndian.PutUint32(b, magic)
	binary.NativeEndian.PutUint32(b[4:], client)
	binary.NativeEndian.PutUint32(b[8:], uint32(kind))
	binary.NativeEndian.PutUint32(b[12:], uint32(len(data)))
	copy(b[controlData:], data)
	return b
}

// parseControl returns the data of ibsim's reply to a control message.
func parseControl(b []byte, kind int) ([]byte, error) {
	if len(b) != controlLen || binary.NativeEndian.Uint32(b) != magic {
		return nil, fmt.Errorf("reply of %d bytes is not a control message", len(b))
	}
	switch got := int(binary.NativeEndian.Uint32(b[8:])); got {
	case kind:
		return b[controlData:], nil
	case typeError:
		return nil, errRefused
	default:
		return nil, fmt.Errorf("reply of type %d to a message of type %d", got, kind)
	}
}

// connectedSlot returns the slot of a client from the data of the reply to its CONNECT.
func connectedSlot(data []byte) uint32 { return binary.NativeEndian.Uint32(data[offClient:]) }

// connectMessage returns the data of a CONNECT to a node, by its ID.
func connectMessage(client uint32, node string) []byte {
	b := make([]byte, connectLen)
	binary.NativeEndian.PutUint32(b[offClient:], client)
	copy(b[offNode:connectLen-1], node)
	return b
}

// envelope is a management packet on its way through ibsim.
type envelope struct {
	dlid, slid     uint16 // slid 0: ibsim fills in that of the port
	destQP, fromQP uint32
	status         uint32 // of a packet that ibsim returns, because it could not be delivered
	mad            [madLen]byte
}

func (e *envelope) bytes() []byte {
	b := binary.BigEndian.AppendUint16(nil, e.dlid)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint16(b, e.slid)
	b = append(b, 0, 0)
	b = binary.BigEndian.AppendUint32(b, e.destQP)
	b = binary.BigEndian.AppendUint32(b, e.fromQP)
	b = binary.BigEndian.AppendUint32(b, e.status)
	b = append(b, 0, 0, 0, 0)
	b = binary.BigEndian.AppendUint64(b, madLen)
	return append(b, e.mad[:]...)
}

// parse returns false for a datagram that is no data message.
func (e *envelope) parse(b []byte) bool {
	if len(b) != dataLen {
		return false
	}
	*e = envelope{
		dlid: binary.BigEndian.Uint16(b), slid: binary.BigEndian.Uint16(b[4:]),
		destQP: binary.BigEndian.Uint32(b[8:]), fromQP: binary.BigEndian.Uint32(b[12:]),
		status: binary.BigEndian.Uint32(b[16:]), mad: [madLen]byte(b[32:]),
	}
	return true
}
