package hca

import (
	"context"
	"net/netip"
	"time"
)

// Device is an opened HCA context. All methods may be called from any
// goroutine. A method documented with "May block" can take as long as the
// hardware does, unless DeviceAttr.NeverBlocks; the others return immediately.
type Device interface {
	// Attr returns the attributes that do not change while the device is open.
	Attr() DeviceAttr
	// QueryPort returns the attributes of a port, including its tables. Ports are
	// numbered from 1. The caller owns the returned slices. May block.
	QueryPort(port uint8) (PortAttr, error)
	// AllocPD allocates a protection domain. May block.
	AllocPD() (PD, error)
	// CreateCQ creates a completion queue. May block.
	CreateCQ(spec CQSpec) (CQ, error)
	// NextEvent blocks until an asynchronous event arrives, ctx ends (its error is
	// returned) or the device is closed (ErrClosed). The event is already
	// acknowledged. Only one goroutine calls NextEvent. A backend bounds its event
	// queue: an event that arrives while the queue is full is merged into an equal
	// one, or counted as lost in Counters.
	NextEvent(ctx context.Context) (AsyncEvent, error)
	// Counters returns the device's own counters by name, including its drop
	// counters. It allocates; do not call it on the data path.
	Counters() []Counter
	// Close releases the context. It returns ErrBusy while the device has
	// children. Idempotent. May block.
	Close() error
}

// Counter is one named count of a device, a queue or a port.
type Counter struct {
	Name  string
	Kind  CounterKind
	Value uint64
}

// CounterKind says what a counter counts.
type CounterKind uint8

// Kinds of counter. [CountUnknown] is for counters that a driver defines, and corresponds to the
// OpenMetrics type unknown. [CountGauge] corresponds to gauge, the others to counter.
const (
	CountUnknown CounterKind = iota
	CountTotal               // events without a loss
	CountDrop                // lost frames or datagrams; each adds 1 to exactly one counter of this kind
	CountError               // failures, and signs of one, other than the loss of a frame
	CountGauge               // a current value, which can decrease
)

// LinkLayer is a port's link layer.
type LinkLayer uint8

// Link layers (enum ibv_link_layer: IBV_LINK_LAYER_*).
const (
	LinkLayerUnspecified LinkLayer = iota
	LinkLayerInfiniBand
	LinkLayerEthernet
)

// Transport says whether the device is hardware or software.
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
	Parent       string    `json:"-"`                  // netdev below a device of Soft-RoCE or siw, else empty
	Ports        uint8     `json:"ports"`
	Transport    Transport `json:"transport"`
	MaxQPWR      int       `json:"max_qp_wr"` // entries of one send or receive queue
	MaxSGE       int       `json:"max_sge"`   // entries of one scatter/gather list, at least 2
	MaxCQE       int       `json:"max_cqe"`   // entries of one CQ
	MaxQueues    int       `json:"-"`         // queues of one QP, at least 1; see QPSpec.Queues
	IPCsum       bool      `json:"ip_csum"`   // SendIPCsum is supported
	// MaxTSO is the payload of one large send in bytes, see SendWR.LSO; 0: unsupported (struct ibv_tso_caps,
	// for UD).
	MaxTSO     int  `json:"-"`
	USO        bool `json:"-"` // large sends of UDP are supported, besides TCP
	LRO        bool `json:"-"` // QPSpec.LRO is supported
	BlocksLoop bool `json:"-"` // QPSpec.BlockLoopback is supported (IB_DEVICE_BLOCK_MULTICAST_LOOPBACK)
	// TSOEntries says that a large send needs an entry of the send queue, and of its CQ, for each
	// segment; see MaxLSOSegments. If not, it needs one.
	TSOEntries bool `json:"-"`
	// NeverBlocks says that verbs and posts wait for nothing, as in the software HCA. Exceptions are the verbs
	// that open and close the device, register memory, create an AH, and attach a QP to a group.
	NeverBlocks bool `json:"-"`
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

// GIDType is the encapsulation that a GID selects.
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
	// MaxPayload is the longest UD payload in bytes that can be sent from this
	// GID: the port's active MTU, or less if a software HCA declares an MTU
	// that its underlay cannot carry in full.
	MaxPayload int `json:"max_payload"`
	// Path is the narrowest known path from this GID; zero: all of them carry MaxPayload, or
	// the device does not know its paths.
	Path PathLimit `json:"path,omitzero"`
}

// PathLimit is a path that carries less than its GID.
type PathLimit struct {
	To  netip.Addr `json:"to"`  // a peer
	MTU int        `json:"mtu"` // of the path: the longest IP packet in bytes
	// Carries is the longest UD payload in bytes that the path carries.
	Carries int `json:"carries"`
	// MaxPayload is the longest UD payload that a user should send from the GID. It is more
	// than Carries if only unauthenticated messages from the network say how little the path
	// carries: the device trusts these only down to a bound.
	MaxPayload int `json:"max_payload"`
	// Reported says that only unauthenticated messages from the network make the path this narrow, and
	// not this host's routes; see [PathRefuter].
	Reported bool `json:"reported,omitempty"`
}

// PortAttr is a port's state and tables (struct ibv_port_attr).
type PortAttr struct {
	State     PortState `json:"state"`
	MaxMTU    MTU       `json:"max_mtu"`
	ActiveMTU MTU       `json:"active_mtu"`
	LinkLayer LinkLayer `json:"link_layer"`
	LID       uint16    `json:"lid"`    // base LID; 0 on Ethernet
	SMLID     uint16    `json:"sm_lid"` // 0 on Ethernet, and until a subnet manager has configured the port
	// LMC is how many low bits of a LID are path bits: the port answers to 2^LMC LIDs (IBA 4.1.3); 0-7.
	LMC  uint8 `json:"lmc,omitzero"`
	SMSL uint8 `json:"sm_sl,omitzero"` // service level of messages to the subnet manager, 0-15
	// SubnetTimeout says how long a packet may take through the subnet: 4.096 us x 2^SubnetTimeout (IBA
	// 14.2.5.6); 0-31, and 0 on Ethernet.
	SubnetTimeout uint8 `json:"subnet_timeout,omitzero"`
	// KernelGroups are the groups that the kernel's own IPoIB interfaces in the network namespace of this process want,
	// sorted, without their broadcast groups. They join and leave them in the name of their ports. Only on InfiniBand.
	KernelGroups []GID `json:"-"`

	GUID  GUID       `json:"guid"`
	GIDs  []GIDEntry `json:"gids"`
	PKeys []PKey     `json:"pkeys"`
}

// PD is a protection domain. Objects created from one PD work together, but not
// with objects of another.
type PD interface {
	// AllocMR maps size bytes of zeroed, page-aligned memory outside the Go
	// heap and registers it. It returns ErrNoMemory if memory or the memory-lock
	// limit is exhausted; the text then says how many bytes are needed. May block.
	AllocMR(size int, access Access) (MR, error)
	// CreateAH creates an address handle. On RoCE it may block for about a
	// second while the neighbour is resolved. If the neighbour does not answer,
	// it returns ErrTimeout, which is not a failure of the device.
	CreateAH(spec AHSpec) (AH, error)
	// CreateQP creates a UD queue pair with one queue, in RESET. The CQs must belong to
	// the same device. A spec with more than one queue is refused with ErrInvalid: it
	// needs [CreateQueues]. May block.
	CreateQP(spec QPSpec, sendCQ, recvCQ CQ) (QP, error)
	// Close frees the domain. It returns ErrBusy while the domain has children.
	// Idempotent. May block.
	Close() error
}

// Access is a set of permissions of the device on registered memory.
type Access uint8

// Access flags (enum ibv_access_flags).
const (
	AccessLocalWrite Access = 1 << iota // the device may write (receive)
)

// MR is registered memory.
type MR interface {
	// Bytes returns the memory. It is valid until Close.
	Bytes() []byte
	// SGE returns the entry for n bytes at off. It panics if they are out of
	// range.
	SGE(off, n int) SGE
	// Close deregisters and unmaps the memory. The caller must no longer hold
	// slices of Bytes, and no posted request may refer to the memory. Idempotent.
	Close() error
}

// AH is an address handle: a destination, without its QPN and Q_Key.
type AH interface {
	// Spec returns the data that the handle was created from.
	Spec() AHSpec
	// Close destroys the handle. No posted request may still use it. Idempotent.
	// May block.
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
	Rate      uint8 // enum ibv_rate; 0: the port's rate
}

// MulticastGroup identifies a group to which a QP is attached (IBA 10.5.1).
type MulticastGroup struct {
	MGID      GID
	MLID      uint16 // InfiniBand only: the MLID of the joined group
	SGIDIndex int    // RoCE only: index of a port GID; its netdev receives the group's packets
}

// CQSpec is the data of a completion queue.
type CQSpec struct {
	Entries int // 1 to DeviceAttr.MaxCQE; a backend may round up
}

// CQ is a completion queue. One goroutine calls Poll, Arm and Wait; any goroutine
// may call Wake.
type CQ interface {
	// ID identifies the CQ in events.
	ID() ObjectID
	// Poll moves up to len(wc) completions into wc and returns how many. It never
	// blocks. Once the CQ is in error it returns ErrCQ, and entries still queued
	// are lost. With an empty slice it only reports that error, and any goroutine
	// may call it.
	Poll(wc []WC) (int, error)
	// Arm requests one wake-up of Wait by the next completion.
	Arm() error
	// Wait blocks until a completion arrives after Arm, until Wake, until the
	// time until (zero: no limit), or until an error or Close. It returns nil
	// in the first three cases; the caller then polls. The software HCA receives
	// and delivers messages meanwhile.
	Wait(until time.Time) error
	// Wake makes the current Wait return, or the next one if none is blocked.
	Wake()
	// Close destroys the CQ. It returns ErrBusy while a QP uses the CQ. A blocked
	// Wait returns ErrClosed. Idempotent. May block.
	Close() error
}

// CQPair is the pair of CQs on which the requests of one queue complete.
type CQPair struct{ Send, Recv CQ }

// Queue is a send queue and a receive queue of a QP. PostSend is called by one goroutine at
// a time, and so is PostRecv. The two may run concurrently with each other, with the posts
// to other queues, and with every other method of the QP.
type Queue interface {
	// Num is the number that peers send to. All queues of a QP have the same.
	Num() QPN
	// Spec returns the data that the QP was created from.
	Spec() QPSpec
	// PostSend posts a list of UD sends in order and returns how many were
	// accepted. If that is fewer than len(wrs), the error says why the next one
	// was refused: ErrQueueFull, ErrInvalid (state, list too long, unsupported or
	// impossible checksum or large send) or ErrIO. Work requests, lists and
	// LSO.Header may be reused on return, the memory that lists refer to only
	// after the completion. PostSend does not block on the network.
	PostSend(wrs []SendWR) (int, error)
	// PostRecv posts receive buffers. It returns the same errors as PostSend.
	PostRecv(wrs []RecvWR) (int, error)
}

// QP is a UD queue pair: its state, and its first queue.
type QP interface {
	Queue
	// ID identifies the QP in events.
	ID() ObjectID
	// Modify changes state and attributes as [UDTransition] allows. It returns
	// ErrInvalid for a transition or an attribute set that is not in the table.
	// Moving to ERR flushes every queue. Moving to RESET drops their requests
	// without completions; their buffers belong to the caller again. May block.
	Modify(attr QPAttr, mask QPAttrMask) error
	// Query returns the current state and attributes. May block.
	Query() (QPAttr, error)
	// AttachMulticast makes the QP receive the packets of a group. It returns
	// ErrInvalid if the QP is already attached. May block.
	AttachMulticast(g MulticastGroup) error
	// DetachMulticast undoes AttachMulticast of the same group. May block.
	DetachMulticast(g MulticastGroup) error
	// Close destroys the QP. Requests still posted are dropped without
	// completions, and Poll returns none of its completions afterwards. Close
	// returns ErrBusy while the QP is attached to a group. Idempotent. May block.
	Close() error
}

// QPSpec is the data of a UD queue pair (struct ibv_qp_init_attr).
type QPSpec struct {
	// Num is the number that the QP should get; 0 means any. It is a wish: a device that
	// numbers its QPs itself ignores it, as real ones do, and the software HCA ignores it if
	// another QP has the number, or if the number is not among its own.
	Num QPN
	// Queues is the number of the QP's queues, from 1 to DeviceAttr.MaxQueues; 0 means 1. A
	// queue is a send queue and a receive queue, each of the depth below, with a pair of
	// CQs. Number, state, groups and errors belong to the QP as a whole. Any other number
	// is refused with ErrInvalid.
	Queues    int
	SendWRs   int  // depth of the send queue, 1 to DeviceAttr.MaxQPWR; see LSO for the room of large sends
	RecvWRs   int  // depth of the receive queue, 1 to DeviceAttr.MaxQPWR
	SendSGEs  int  // 1 to DeviceAttr.MaxSGE
	RecvSGEs  int  // 1 to DeviceAttr.MaxSGE
	SignalAll bool // every send completes; else only failures and sends with SendSignaled
	// LRO lets the device join messages, as far as a receive has room (see WC.LRO), and use the
	// receives in any order. Without DeviceAttr.LRO, the spec is refused with ErrInvalid.
	LRO bool
	// LROUDP says that the host accepts joined messages of UDP as well as of TCP. With LRO, the
	// device may join them.
	LROUDP bool
	// BlockLoopback keeps the device from delivering multicast of the QP to the QP itself
	// (IB_QP_CREATE_BLOCK_MULTICAST_LOOPBACK); other members on the port get it. Without
	// DeviceAttr.BlocksLoop, the spec is refused with ErrInvalid.
	BlockLoopback bool
}

// ObjectKind is the kind of object that an [ObjectID] identifies.
type ObjectKind uint8

// Object kinds.
const (
	KindNone ObjectKind = iota
	KindDevice
	KindPort
	KindCQ
	KindQP
)

// ObjectID identifies an object of one device instance. An object and any later
// one of the same kind and number differ in Generation.
type ObjectID struct {
	Kind       ObjectKind
	Num        uint32 // QPN, CQ number or port number
	Generation uint32
}
