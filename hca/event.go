package hca

import "strconv"

// EventType is the type of an asynchronous event.
type EventType uint8

// Event types (enum ibv_event_type, same values).
const (
	EventCQErr EventType = iota
	EventQPFatal
	EventQPReqErr
	EventQPAccessErr
	EventCommEst
	EventSQDrained
	EventPathMig
	EventPathMigErr
	EventDeviceFatal
	EventPortActive
	EventPortErr
	EventLIDChange
	EventPKeyChange
	EventSMChange
	EventSRQErr
	EventSRQLimitReached
	EventQPLastWQEReached
	EventClientReregister
	EventGIDChange
	EventWQFatal
	// NumEventType bounds the enumeration for total tables.
	NumEventType
)

var eventNames = [NumEventType]string{
	"CQ_ERR", "QP_FATAL", "QP_REQ_ERR", "QP_ACCESS_ERR", "COMM_EST", "SQ_DRAINED", "PATH_MIG",
	"PATH_MIG_ERR", "DEVICE_FATAL", "PORT_ACTIVE", "PORT_ERR", "LID_CHANGE", "PKEY_CHANGE", "SM_CHANGE",
	"SRQ_ERR", "SRQ_LIMIT_REACHED", "QP_LAST_WQE_REACHED", "CLIENT_REREGISTER", "GID_CHANGE", "WQ_FATAL",
}

func (t EventType) String() string { return nameOf(eventNames[:], int(t)) }

// AsyncEvent is an asynchronous event, already acknowledged to the device.
type AsyncEvent struct {
	Type EventType
	On   ObjectID // the device, port, CQ or QP that it is about
}

var portStateNames = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

func (s PortState) String() string { return nameOf(portStateNames, int(s)) }

// MarshalText makes a PortState print by name in JSON.
func (s PortState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

var linkLayerNames = []string{"Unspecified", "InfiniBand", "Ethernet"}

func (l LinkLayer) String() string { return nameOf(linkLayerNames, int(l)) }

// MarshalText makes a LinkLayer print by name in JSON.
func (l LinkLayer) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

var gidTypeNames = []string{"IB", "RoCE v1", "RoCE v2"}

func (t GIDType) String() string { return nameOf(gidTypeNames, int(t)) }

// MarshalText makes a GIDType print by name in JSON.
func (t GIDType) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

var transportNames = []string{"hardware", "software"}

func (t Transport) String() string { return nameOf(transportNames, int(t)) }

// MarshalText makes a Transport print by name in JSON.
func (t Transport) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// nameOf returns the i-th name, a number where there is none.
func nameOf(names []string, i int) string {
	if i < 0 || i >= len(names) {
		return "UNKNOWN_" + strconv.Itoa(i)
	}
	return names[i]
}
