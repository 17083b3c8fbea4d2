package ud

import (
	"errors"
	"net/netip"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// ErrDetached means that no queue pair is attached: Pump did nothing, read
// nothing and did not wait.
var ErrDetached = errors.New("no queue pair attached")

// Source supplies the host's frames: a TAP. A frame is a virtio header and an
// Ethernet frame.
type Source interface {
	// ReadBatch blocks until there is a frame, stores up to len(bufs) frames in
	// bufs and their lengths in sizes, and returns the number of frames. It
	// returns 0 and nil after Wake.
	ReadBatch(bufs [][]byte, sizes []int) (int, error)
	// Wake makes the current ReadBatch, or else the next one, return. Any
	// goroutine may call it.
	Wake()
}

// Sink accepts frames for the host.
type Sink interface {
	// WriteVectors writes frames, each of which is the concatenation of several slices. A
	// large frame requests segmentation in its virtio header. WriteVectors sets accepted[i] to
	// whether the host accepted frames[i], and returns the number of accepted frames; accepted
	// is as long as frames. A refused frame does not stop the frames after it. The caller may
	// reuse the frames on return.
	WriteVectors(frames [][][]byte, accepted []bool) (int, error)
}

// Peers is the data path's view of the fabric's addresses: an immutable
// snapshot. No method allocates or blocks; any goroutine may call them.
type Peers interface {
	// Unicast returns the destination of frames for the Ethernet address dst, and where to count the bytes that are
	// sent there, which is never nil if ok.
	Unicast(dst ipoib.MAC) (to hca.UDDest, bytes *atomic.Uint64, ok bool)
	// Group returns the destination of messages to a multicast group. For a group that
	// is not in the port's plan, it returns the broadcast group: all members of the
	// link receive such messages, and hosts that have not joined the group drop them.
	Group(mgid hca.GID) (hca.UDDest, bool)
	// PeerMAC returns the Ethernet address that represents a peer towards the
	// host, even if the peer is unknown, and where to count the bytes that it sends;
	// nil: nowhere. Rx calls it exactly once for each receive whose messages it
	// delivers, and for no other, so an implementation can use it to note which peers
	// are alive.
	PeerMAC(from hca.UDSource) (mac ipoib.MAC, bytes *atomic.Uint64)
	// StationMAC returns the destination of unicast frames for ip on the host's side. It returns
	// false if it is not known there; the message then goes to the slow path.
	StationMAC(ip netip.Addr) (mac ipoib.MAC, ok bool)
	// FromHost reports whether frames with the source address src may pass; if
	// not, the frame goes to the slow path.
	FromHost(src ipoib.MAC) bool
	// IsHost reports whether src is the host itself, and no guest.
	IsHost(src ipoib.MAC) bool
	// InUse reports whether the host sends data to a sender, whose messages then go first in
	// the slow path.
	InUse(from hca.UDSource) bool
	// Self reports whether the sender is our own queue pair.
	Self(from hca.UDSource) bool
	// Epoch numbers the snapshots of one interface; later snapshots have larger
	// numbers.
	Epoch() uint64
}

// SlowPath handles the frames and messages that the data path cannot. Its
// methods copy what they keep, and never block.
type SlowPath interface {
	// FromHost takes an Ethernet frame, without its virtio header. It returns
	// false when full.
	FromHost(frame []byte) bool
	// FromFabric takes a message, from its IPoIB header on. It returns
	// SlowPathed, SlowPathFull, or SlowPathLimit.
	FromFabric(msg []byte, from Sender) Reason
}

// Sender is the origin of a message as the device reports it.
type Sender struct {
	hca.UDSource
	Multicast bool // the GRH's destination is a group
}

// Snapshot holds the current Peers. One goroutine publishes, any goroutine may
// load; the zero value holds none.
type Snapshot struct{ p atomic.Pointer[Peers] }

// Publish makes p current. p must not be nil and must not change afterwards.
func (s *Snapshot) Publish(p Peers) { s.p.Store(&p) }

// Load returns the current Peers, or nil before the first Publish.
func (s *Snapshot) Load() Peers {
	if p := s.p.Load(); p != nil {
		return *p
	}
	return nil
}

// epoch returns the number of the current snapshot, or 0 if there is none.
func (s *Snapshot) epoch() uint64 {
	if p := s.Load(); p != nil {
		return p.Epoch()
	}
	return 0
}
