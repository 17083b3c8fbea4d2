package ud

import (
	"errors"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// ErrDetached says that no queue pair is attached: Pump did nothing, read
// nothing and did not wait.
var ErrDetached = errors.New("no queue pair attached")

// Source is where frames of the host come from: a TAP. A frame is a virtio
// header and an Ethernet frame.
type Source interface {
	// ReadBatch blocks until there is a frame, puts up to len(bufs) of them
	// into bufs, their lengths into sizes, and returns how many. It returns
	// 0 and nil after Wake.
	ReadBatch(bufs [][]byte, sizes []int) (int, error)
	// Wake makes a ReadBatch under way, or else the next one, return. Any
	// goroutine may call it.
	Wake()
}

// Sink is where frames for the host go.
type Sink interface {
	// WriteBatch writes frames and returns how many the host took. One that it
	// refuses does not stop those behind it. The frames may be reused on return.
	WriteBatch(frames [][]byte) (int, error)
}

// Peers is what the data path knows of the fabric's addresses: an immutable
// snapshot. No method allocates or blocks; any goroutine may call them.
type Peers interface {
	// Unicast returns where frames for the Ethernet address dst go.
	Unicast(dst ipoib.MAC) (hca.UDDest, bool)
	// Group returns where messages to a multicast group go.
	Group(mgid hca.GID) (hca.UDDest, bool)
	// PeerMAC returns the Ethernet address that stands for a peer towards the
	// host. It is total: an unknown peer has one too. Rx calls it once for each
	// message that it delivers, and for no other message, so an implementation can
	// note which peers were heard.
	PeerMAC(gid hca.GID, qpn hca.QPN) ipoib.MAC
	// HostMAC is the destination of unicast frames towards the host.
	HostMAC() ipoib.MAC
	// FromHost reports whether frames with the source address src may pass;
	// false lets the slow path see the frame.
	FromHost(src ipoib.MAC) bool
	// Self reports whether the address is our own.
	Self(gid hca.GID, qpn hca.QPN) bool
	// Epoch numbers the snapshots of one interface: a later one has a larger
	// number.
	Epoch() uint64
}

// SlowPath takes the frames and messages that the data path does not decide.
// Its methods copy what they keep, never block, and return false when full.
type SlowPath interface {
	// FromHost takes an Ethernet frame, without its virtio header.
	FromHost(frame []byte) bool
	// FromFabric takes a message, from its IPoIB header on.
	FromFabric(msg []byte, from Sender) bool
}

// Sender is where a message came from, as the device saw it.
type Sender struct {
	GID       hca.GID // source GID of the GRH
	QPN       hca.QPN // of the completion
	Multicast bool    // the GRH's destination is a group
}

// Snapshot holds the Peers in force. One goroutine publishes, any may load; the
// zero value holds none.
type Snapshot struct{ p atomic.Pointer[Peers] }

// Publish puts p in force. p is not nil and does not change any more.
func (s *Snapshot) Publish(p Peers) { s.p.Store(&p) }

// Load returns the Peers in force, nil before the first Publish.
func (s *Snapshot) Load() Peers {
	if p := s.p.Load(); p != nil {
		return *p
	}
	return nil
}

// epoch returns the number of the snapshot in force, 0 where there is none.
func (s *Snapshot) epoch() uint64 {
	if p := s.Load(); p != nil {
		return p.Epoch()
	}
	return 0
}
