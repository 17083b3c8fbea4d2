package transport

import (
	"net/netip"
	"time"

	"ipoibd/hca"
)

// FastPaths is a [Transport] beside which the kernel can carry small messages of QPs. Its methods may be called from
// any goroutine.
type FastPaths interface {
	// AddGate adds a QP, whose gate is closed. Errors: errors.ErrUnsupported if there is no fast path, hca.ErrNoMemory if too
	// many QPs have one, hca.ErrClosed, the system's.
	AddGate(spec GateSpec) (Gate, error)
	// WhenEmpty makes Recv call f whenever it finds no datagram. f must not block.
	WhenEmpty(f func())
}

// GateSpec describes a QP to the fast path.
type GateSpec struct {
	Netdev int // index of the TAP
	MAC    [6]byte
	Addr   netip.Addr
	Num    hca.QPN
	Ports  []uint16 // UDP source ports of the lanes
}

// GatePeer is a peer of a QP on the fast path.
type GatePeer struct {
	MAC                    [6]byte // by which the host knows it
	Addr                   netip.Addr
	Num                    hca.QPN
	QKey                   hca.QKey
	TrafficClass, HopLimit uint8
}

// Gate is a QP on the fast path, which carries messages while the gate is open. One goroutine at a time may call its methods,
// unless they say otherwise.
type Gate interface {
	// Open opens the gate for a Q_Key and a P_Key, unless it is open for these already. Messages that could overtake others of
	// their flow still go through the device; see Sent and Received.
	Open(qkey hca.QKey, pkey hca.PKey)
	// PSN returns the counter of packet sequence numbers, whose low 24 bits are the next one. The device and the fast path take
	// numbers from it by atomic operations. It is the gate's until Close.
	PSN() *uint32
	// Shut closes the gate. After its return, nothing more is taken to be carried; what was taken before may still be in the
	// kernel's queues. Idempotent. Any goroutine may call it.
	Shut()
	// Refused returns why the gate stays shut although it was opened, or nil. Any goroutine may call it.
	Refused() error
	// Flow returns the flow of a message, which begins with the IPoIB header and may be truncated after the ports. Any goroutine
	// may call it.
	Flow(msg []byte) uint32
	// Sent and Received report that n packets of a flow were sent, or delivered by a lane, or dropped; flow 0 is ignored. Any
	// goroutine may call them.
	Sent(flow, n uint32)
	Received(lane int, flow, n uint32)
	// SentAll and ReceivedAll report that a lane is empty. Messages that are still missing after several such reports count
	// as lost. Any goroutine may call them.
	SentAll(lane int, now time.Time)
	ReceivedAll(lane int, now time.Time)
	// AddPeer adds a peer. Without a route to it, nothing is carried to it until there is one. It asks the kernel for the route.
	// Errors: hca.ErrNoMemory if there are too many peers, the system's.
	AddPeer(p GatePeer) error
	RemovePeer(mac [6]byte) (last hca.FastPathCounts, err error)
	// PeerCounts returns the counts of a peer since AddPeer. After Close, it and RemovePeer return the last ones.
	PeerCounts(mac [6]byte) (c hca.FastPathCounts, ok bool)
	// Counters may also be called after Close, and by any goroutine, but not while Close runs.
	Counters() []hca.Counter
	// Close closes the gate and removes the QP.
	Close() error
}
