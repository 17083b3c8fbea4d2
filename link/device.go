package link

import (
	"context"
	"net/netip"
	"slices"
)

// HeaderLen is the length in bytes of the virtio header in front of each frame
// (struct virtio_net_hdr, linux/virtio_net.h).
const HeaderLen = 10

// Queue is one queue of a TAP. The kernel puts each frame from the host into one of the queues, which
// [Programs].Steering selects or, without it, the kernel itself. Only one goroutine at a time may call
// ReadBatch; any may call the other methods.
type Queue interface {
	// ReadBatch blocks until there is a frame from the host. It then reads the queued
	// frames, one into each of bufs, and stores their lengths in sizes, which must not be
	// shorter than bufs. It returns their number, or 0 and nil after Wake. On return the
	// buffers belong to the caller again. A frame longer than its buffer is dropped and
	// counted. Errors: ErrClosed, ErrGone.
	ReadBatch(bufs [][]byte, sizes []int) (int, error)
	// WriteVectors sends frames to the host. Each frame is the concatenation of up to MaxSlices
	// slices, and the first slice begins with the virtio header. The host accepts large frames,
	// which request segmentation in that header, whatever the offloads are. WriteVectors
	// returns how many frames the kernel accepted, and sets accepted[i] to whether it accepted
	// frames[i]; accepted must not be shorter than frames. A refused frame is counted by reason
	// in Counters, and the next one is tried. WriteVectors neither blocks nor keeps the frames.
	// Errors: ErrClosed, ErrGone.
	WriteVectors(frames [][][]byte, accepted []bool) (int, error)
	// Wake makes the current ReadBatch return, or else the next one.
	Wake()
}

// Device is the contract of a TAP. Any goroutine may call its methods, except for ReadBatch.
type Device interface {
	Queue // the first one
	// Name returns the name that the interface was opened with.
	Name() string
	// Queues returns all queues, at least one; their number does not change.
	Queues() []Queue
	// SetCarrier raises or drops the carrier. It may block for some 10 ms.
	SetCarrier(on bool) error
	// SetOffloads turns on the wanted offloads that the kernel supports, and returns
	// them as got. From then on, ReadBatch returns frames of up to MaxFrame bytes whose virtio
	// header requests a checksum or segmentation. After a call with fewer offloads, ReadBatch
	// may still return such frames that were queued before. Open and Close turn all offloads
	// off. On error, got contains the offloads that may be on. May block. Errors: ErrClosed,
	// ErrGone.
	SetOffloads(want Offloads) (got Offloads, err error)
	// Inspect restores the properties that other processes have changed, and reports
	// them: the MAC, the carrier, the length of the virtio header, the persistence,
	// the owner, the offloads and the link type. It also removes filters of others, and sets
	// again the other properties that a queue can change for the whole device; the
	// kernel does not report those, so they are not in the findings. An error ends the
	// inspection; the findings then contain the properties that were restored before. May block.
	Inspect() (Findings, error)
	// State returns the current state, from netlink. May block.
	State() (State, error)
	// Watch delivers the current state and then each change. A newer state replaces
	// one that was not yet received. The channel is closed when ctx ends or the device
	// is closed.
	Watch(ctx context.Context) (<-chan State, error)
	// Counters returns the counts of this process.
	Counters() Counters
	// KernelCounters returns the kernel's counters, from netlink, perhaps as they were 100 ms ago, even if the
	// device was closed since. Errors: the kernel does not answer, perhaps because another process holds its
	// rtnl lock; ErrGone. Blocks for a fraction of a second at most.
	KernelCounters() (KernelCounters, error)
	// Close drops the carrier, detaches the queue and releases the name. The
	// interface remains. Current calls return ErrClosed. Idempotent. May block.
	Close() error
}

// Findings are the state of an interface, and what other processes have done to it.
type Findings struct {
	// Foreign counts the queues of other processes. The kernel gives them some of
	// the frames, and only their holders can close them.
	Foreign int
	// MTU and Carrier are those of State, after the restoration. Not valid with an error.
	MTU     int
	Carrier bool
	// Restored lists the properties that were changed and are restored. It is valid
	// with an error too.
	Restored []Change
}

// Change is a property of an interface that another process has changed.
type Change struct {
	What  Property
	Found string // the value that the other process had set
}

// Property is a property of an interface that only its holder may change.
type Property string

// The properties.
const (
	PropertyMAC         Property = "MAC"
	PropertyCarrier     Property = "carrier"
	PropertyHeader      Property = "virtio header length"
	PropertyPersistence Property = "persistence"
	PropertyOwner       Property = "owner"
	PropertyOffloads    Property = "offloads"
	PropertyLinkType    Property = "link type"
)

// State is the state of the interface on the host.
type State struct {
	Index int // in its current network namespace
	Name  string
	// Present is false, and all else zero, if the interface was deleted or moved to a
	// network namespace that this process may not enter.
	Present bool
	Away    bool // in another network namespace than when it was opened
	Up      bool // administratively up
	// Downs is how often the interface has gone down since Watch began, also between two states
	// that it delivered; State does not count.
	Downs uint64
	// Carrier is the kernel's IFF_LOWER_UP: the carrier is on and the interface
	// is up.
	Carrier bool
	// Promiscuous says that someone wants to see all frames: a program such as tcpdump, or a bridge.
	Promiscuous bool
	MTU         int // bytes of payload of an Ethernet frame
	MAC         [6]byte
	Master      int // index of its bridge, bond or VRF; 0: none
	Alias       string
	// Foreign counts the queues of other processes. When it changes, Watch delivers
	// a state, so its reader can call Inspect at once.
	Foreign int
	// Addrs are the addresses of the interface, sorted: of each family the first 256.
	// An address is listed only once duplicate address detection has found it unique.
	Addrs []netip.Prefix
	Above []netip.Prefix // the addresses of its master, listed in the same way
	// MasterMAC is that of the bridge or bond that it is a port of; zero: it is not, or of a VRF,
	// which has its ports' MACs.
	MasterMAC [6]byte
}

// SelfAddrs returns the host's own addresses behind the interface: the addresses of the interface
// and of its master.
func (s State) SelfAddrs() []netip.Prefix { return slices.Concat(s.Addrs, s.Above) }
