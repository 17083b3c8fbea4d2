package link

import (
	"context"
	"iter"
	"net/netip"
)

// HeaderLen is the length in bytes of the virtio header in front of each frame
// (struct virtio_net_hdr, linux/virtio_net.h).
const HeaderLen = 10

// Device is what a TAP offers. ReadBatch is called by one goroutine at a time,
// every other method by any.
type Device interface {
	// Name returns the name that the interface was opened with.
	Name() string
	// ReadBatch blocks until there is a frame from the host, then reads those
	// that wait, one into each of bufs, and their lengths into sizes, which is
	// no shorter. It returns how many; 0 and nil after Wake. The buffers are the
	// caller's again on return. A frame longer than its buffer is dropped and
	// counted. Errors: ErrClosed, ErrGone.
	ReadBatch(bufs [][]byte, sizes []int) (int, error)
	// WriteBatch gives frames to the host, virtio header in front, and returns
	// how many the kernel took. One that it refuses is counted by reason in
	// Counters, and the next one is tried. It does not block, and does not keep
	// the frames. Errors: ErrClosed, ErrGone.
	WriteBatch(frames [][]byte) (int, error)
	// Wake makes a ReadBatch under way, or else the next one, return.
	Wake()
	// SetCarrier raises or drops the carrier. It may block for some 10 ms.
	SetCarrier(on bool) error
	// Inspect restores the properties that other processes have changed, and reports
	// them: the MAC, the carrier, the length of the virtio header, the persistence,
	// the owner, the offloads and the link type. It also removes filters, and sets
	// again the other properties that a queue can change for the whole device; the
	// kernel does not report those, so they are not in the findings. An error ends the
	// inspection; the findings then contain what was restored before. May block.
	Inspect() (Findings, error)
	// State returns what netlink says now. May block.
	State() (State, error)
	// Watch delivers the present state and then each change; a value that was
	// not yet taken is replaced by a later one. The channel is closed when ctx
	// ends or the device is closed.
	Watch(ctx context.Context) (<-chan State, error)
	// Counters returns the counts of both sides. May block.
	Counters() (Counters, error)
	// Close drops the carrier, detaches the queue and releases the name. The
	// interface stays. Calls under way end with ErrClosed. Harmless when
	// repeated. May block.
	Close() error
}

// Findings are what other processes have done to an interface.
type Findings struct {
	// Foreign counts the queues of other processes. The kernel gives them some of
	// the frames, and only their holders can close them.
	Foreign int
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

// State is what the host has made of the interface.
type State struct {
	Index int // in the network namespace that it is in now
	Name  string
	// Present is false, and all else zero, of an interface that was deleted or
	// moved to a network namespace that this process may not enter.
	Present bool
	Up      bool // administratively up
	// Carrier is the kernel's IFF_LOWER_UP: the carrier is on and the interface
	// is up.
	Carrier bool
	MTU     int // bytes of payload of an Ethernet frame
	MAC     [6]byte
	Master  int // index of the bridge, bond or VRF above, 0 without one
	Alias   string
	// Foreign counts the queues of other processes. When it changes, Watch delivers
	// a state, so its reader can call Inspect at once.
	Foreign int
	// Addrs are the addresses of the interface, sorted: of each family the first 256.
	// An address is listed only once duplicate address detection has found it unique.
	Addrs []netip.Prefix
	Above []netip.Prefix // of its master, likewise
}

// SelfAddrs yields the host's own addresses behind the interface: its own and
// its master's.
func (s State) SelfAddrs() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, list := range [][]netip.Prefix{s.Addrs, s.Above} {
			for _, p := range list {
				if !yield(p.Addr()) {
					return
				}
			}
		}
	}
}
