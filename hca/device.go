package hca

import (
	"context"
	"time"
)

// Device is an opened HCA context. All methods may be called from any
// goroutine. A method that says it may block can take as long as the hardware
// does; the others return at once.
type Device interface {
	// Attr returns what never changes while the device is open.
	Attr() DeviceAttr
	// QueryPort returns the attributes of a port, numbered from 1, tables
	// included. The slices in it belong to the caller. May block.
	QueryPort(port uint8) (PortAttr, error)
	// AllocPD allocates a protection domain. May block.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue. May block.
	CreateCQ(spec CQSpec) (CQ, error)
	// NextEvent blocks until an asynchronous event is there, already
	// acknowledged, until ctx ends (its error) or until the device is closed
	// (ErrClosed). One goroutine calls it. A backend bounds its queue; an event
	// that finds it full is merged into an equal one or counted as lost in
	// Counters.
	NextEvent(ctx context.Context) (AsyncEvent, error)
	// Counters returns the device's own counters by name, those of its drops
	// included. It allocates; it is not for the data path.
	Counters() []Counter
	// Close releases the context. ErrBusy while children live; harmless when
	// repeated. May block.
	Close() error
}

// Counter is one named count of a device, a queue or a port.
type Counter struct {
	Name  string `json:"name"`
	Value uint64 `json:"value"`
}

// LinkLayer is a port's link layer.
type LinkLayer uint8

// Link layers (enum ibv_link_layer: IBV_LINK_LAYER_*).
const (
	LinkLayerUnspecified LinkLayer = iota
	LinkLayerInfiniBand
	LinkLayerEthernet
)

// Transport says whether the device is a real one.
type Transport uint8

// Transports.
const (
	TransportHardware Transport = iota
	TransportSoftware           // the embedded software HCA
)

// DeviceAttr describes an HCA (struct ibv_device_attr).
type DeviceAttr struct {
	Name         string    `json:"name"`
	NodeGUID     GUID      `json:"node_guid"`
	SysImageGUID GUID      `json:"sys_image_guid"`
	PCIAddr      string    `json:"pci_addr,omitempty"` // empty for software devices
	Parent       string    `json:"-"`                  // netdev of a software RDMA device of the kernel, else empty
	Ports        uint8     `json:"ports"`
	Transport    Transport `json:"transport"`
	MaxQPWR      int       `json:"max_qp_wr"` // entries of one send or receive queue
	MaxSGE       int       `json:"max_sge"`   // entries of one scatter/gather list, at least 2
	MaxCQE       int       `json:"max_cqe"`   // entries of one CQ
	IPCsum       bool      `json:"ip_csum"`   // IBV_DEVICE_UD_IP_CSUM
}

// PortState is a port's logical state.
type PortState uint8

// Port states (enum ibv_port_state, same values).
const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

// GIDType tells how a GID is carried.
type GIDType uint8

// GID types (enum ibv_gid_type_sysfs and rdma_netlink names).
const (
	GIDTypeIB GIDType = iota
	GIDTypeRoCEv1
	GIDTypeRoCEv2
)

// GIDEntry is one entry of a port's GID table; a zero GID is an empty entry.
type GIDEntry struct {
	GID  GID     `json:"gid"`
	Type GIDType `json:"type"`
	// MaxPayload is the longest UD payload in bytes that passes through this
	// GID: the port's active MTU, or less where a software HCA declares an MTU
	// that its underlay cannot carry in full.
	MaxPayload int `json:"max_payload"`
}

// PortAttr is a port's state and tables (struct ibv_port_attr).
type PortAttr struct {
	State     PortState  `json:"state"`
	MaxMTU    MTU        `json:"max_mtu"`
	ActiveMTU MTU        `json:"active_mtu"`
	LinkLayer LinkLayer  `json:"link_layer"`
	LID       uint16     `json:"lid"`    // 0 on Ethernet
	SMLID     uint16     `json:"sm_lid"` // 0 on Ethernet
	GUID      GUID       `json:"guid"`
	GIDs      []GIDEntry `json:"gids"`
	PKeys     []PKey     `json:"pkeys"`
}

// PD is a protection domain: what it gave out works together, and with nothing
// else.
type PD interface {
	// AllocMR maps size bytes of zeroed, page-aligned memory outside the Go
	// heap and registers it. Errors: ErrNoMemory (also a memory-lock limit,
	// with the bytes needed in the text). May block.
	AllocMR(size int, access Access) (MR, error)
	// CreateAH makes an address handle. On RoCE it may block for about a
	// second while the neighbour is resolved; ErrTimeout then, which is a
	// silent peer and no failure of the device.
	CreateAH(spec AHSpec) (AH, error)
	// CreateQP creates a UD queue pair in RESET. Its CQs must be of the same
	// device. May block.
	CreateQP(spec QPSpec, sendCQ, recvCQ CQ) (QP, error)
	// Close frees the domain. ErrBusy while children live; harmless when
	// repeated. May block.
	Close() error
}

// Access says what a device may do with registered memory.
type Access uint8

// Access flags (enum ibv_access_flags).
const (
	AccessLocalWrite Access = 1 << iota // the device may write (receive)
)

// MR is registered memory.
type MR interface {
	// Bytes is the memory. It stays valid until Close.
	Bytes() []byte
	// SGE names n bytes at off. It panics when they are not inside.
	SGE(off, n int) SGE
	// Close deregisters and unmaps. The caller holds no slice of Bytes any
	// more, and no posted request names the memory. Harmless when repeated.
	Close() error
}

// AH is an address handle: a destination, without its QPN and Q_Key.
type AH interface {
	// Spec returns what the handle was made from.
	Spec() AHSpec
	// Close destroys the handle; no posted request uses it any more. Harmless
	// when repeated. May block.
	Close() error
}

// AHSpec is the data of an address handle (struct ibv_ah_attr).
type AHSpec struct {
	Port      uint8
	DLID      uint16 // InfiniBand only
	SL        uint8  // 0-15
	Global    bool   // a GRH is sent; always true on RoCE
	DGID      GID    // unicast or multicast
	SGIDIndex int
	FlowLabel uint32 // 20 bits
	HopLimit  uint8
	Traffic   uint8 // traffic class
	Rate      uint8 // enum ibv_rate; 0 is the port's own
}

// MulticastGroup is a group as a QP is attached to it (IBA 10.5.1).
type MulticastGroup struct {
	MGID      GID
	MLID      uint16 // InfiniBand only: that of the joined group
	SGIDIndex int    // RoCE only: of the port's GID on whose netdev the group's packets come
}

// CQSpec is the data of a completion queue.
type CQSpec struct {
	Entries int // 1 to DeviceAttr.MaxCQE; a backend may round up
}

// CQ is a completion queue. One goroutine polls, arms and waits; any may Wake.
type CQ interface {
	// ID names the CQ in events.
	ID() ObjectID
	// Poll takes up to len(wc) completions, never blocks and returns how many.
	// ErrCQ once the CQ is in error: entries still queued are void. With an
	// empty slice it tells that alone, and any goroutine may call it.
	Poll(wc []WC) (int, error)
	// Arm asks for one wake-up of Wait by the next completion.
	Arm() error
	// Wait blocks until a completion came after Arm, until Wake, until the
	// time until (zero: no limit), or until an error or Close. It returns nil
	// for the first three: the caller polls in any case.
	Wait(until time.Time) error
	// Wake makes a Wait under way, or else the next one, return.
	Wake()
	// Close destroys the CQ. ErrBusy while a QP uses it. A Wait under way
	// returns ErrClosed. Harmless when repeated. May block.
	Close() error
}

// QP is a UD queue pair. PostSend is called by one goroutine at a time, so is
// PostRecv; the two may run side by side, and beside every other method.
type QP interface {
	// ID names the QP in events.
	ID() ObjectID
	// Num is the number that peers send to.
	Num() QPN
	// Spec returns what the QP was created from.
	Spec() QPSpec
	// Modify moves the QP as [UDTransition] allows: ErrInvalid for a
	// transition or an attribute set that the table does not have; moving to
	// ERR flushes both queues, moving to RESET drops their requests without
	// completions (the caller takes its buffers back). May block.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns the state and attributes in force. May block.
	Query() (QPAttr, error)
	// PostSend posts a list of UD sends in order and returns how many were
	// taken; with fewer than len(wrs) the error says why the next one was not:
	// ErrQueueFull, ErrInvalid (state, list too long), ErrIO. Work requests
	// and lists may be reused on return; the memory that they name may not
	// until the completion. Does not block on the network.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv posts receive buffers, with the errors of PostSend.
	PostRecv(wrs []RecvWR) (int, error)
	// AttachMulticast makes the QP receive the packets of a group. ErrInvalid when
	// attached already. May block.
	AttachMulticast(g MulticastGroup) error
	// DetachMulticast undoes AttachMulticast of the same. May block.
	DetachMulticast(g MulticastGroup) error
	// Close destroys the QP; requests still posted are dropped without
	// completions, and none of its completions is polled afterwards. ErrBusy
	// while attached to a group. Harmless when repeated. May block.
	Close() error
}

// QPSpec is the data of a UD queue pair (struct ibv_qp_init_attr).
type QPSpec struct {
	SendWRs   int  // depth of the send queue, 1 to DeviceAttr.MaxQPWR
	RecvWRs   int  // depth of the receive queue, likewise
	SendSGEs  int  // 1 to DeviceAttr.MaxSGE
	RecvSGEs  int  // likewise
	SignalAll bool // every send gives a completion; else those that ask
}

// ObjectKind says what an [ObjectID] names.
type ObjectKind uint8

// Object kinds.
const (
	KindNone ObjectKind = iota
	KindDevice
	KindPort
	KindCQ
	KindQP
)

// ObjectID names an object of one device instance. Generation differs between
// an object and any later one of the same kind and number.
type ObjectID struct {
	Kind       ObjectKind
	Num        uint32 // QPN, CQ number or port number
	Generation uint32
}
