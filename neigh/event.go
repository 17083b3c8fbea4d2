package neigh

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Event is an input of [Table.Step]. Slices in an event stay the caller's; the
// table copies what it keeps.
type Event interface{ event() }

// FromHost is an Ethernet frame of the host that the data path could not
// decide: ARP, RARP, ND, an unknown destination, or an unknown source. The data path
// drops ND behind extension headers ([ipoib.HidesND]).
type FromHost struct{ Frame []byte }

// FromFabric is a message of the fabric that is not for the data path: ARP,
// RARP or ND.
type FromFabric struct {
	Msg       []byte  // IPoIB header and body
	SrcGID    hca.GID // of the GRH
	SrcQPN    hca.QPN // of the completion
	Multicast bool    // the GRH's destination is a group
}

// Attached says that the QP is up, under this address. It also reports changes
// of an attachment. A new Self is announced to the fabric.
type Attached struct {
	Self      ipoib.Addr
	Broadcast hca.UDDest // the broadcast group, which stands for every group
	PKey      hca.PKey
	QKey      hca.QKey
	MTU       int // largest IP packet in bytes
}

// Detached says that the QP is gone and its handles are void. What was kept for
// sending is dropped; peers stay, without a handle.
type Detached struct{}

// AHReady answers [CreateAH]. Every CreateAH is answered exactly once, by
// AHReady or by [AHFailed], however late.
type AHReady struct {
	ID uint64
	AH hca.AH
}

// AHFailed answers [CreateAH]. [hca.ErrInvalid] and [hca.ErrRange] are final;
// any other error is tried again.
type AHFailed struct {
	ID  uint64
	Err error
}

// HostAddrs are all the addresses of the host on this link: those of ib0, or of
// the bridge that it is a port of, without tentative ones. Beyond [maxHostAddrs]
// they are ignored. New ones are announced.
type HostAddrs struct {
	Addrs  []netip.Addr
	Router bool // the host forwards IPv6 there (net.ipv6.conf.<name>.forwarding)
}

// HostMAC is ib0's own Ethernet address.
type HostMAC struct{ MAC ipoib.MAC }

// HostPortChanged says that ib0 went up or down, has another master, or became
// another kind of port: what was learnt of the interfaces behind it does not
// hold any more.
type HostPortChanged struct {
	// Alone: ib0 is the host's own interface, with addresses and without a
	// master. There is nobody behind it, so that no other MAC is learnt: the
	// host's traffic would follow whoever sent one frame.
	Alone bool
}

// HostNeighbours are the kernel's neighbour entries on ib0, hints about what the
// host's cache says that a restarted table does not know. They replace the
// former hints; what the table remembers of forgotten peers stays. Beyond
// [maxHints] they are ignored.
type HostNeighbours struct{ Entries []Neighbour }

// Neighbour is an entry of the kernel's neighbour table.
type Neighbour struct {
	IP  netip.Addr
	MAC ipoib.MAC
}

// HostAsks are addresses that the host waits for: what it asked with was lost
// while its link was not up, and it asks again only after a second (RETRANS_TIMER
// of RFC 4861 section 10). They are asked for in its name, once. Beyond
// [maxHostAsks] they are ignored.
type HostAsks struct{ Targets []netip.Addr }

// Stray reports datagrams for a QPN that no queue pair of this host has: their sender
// still uses an address from before a restart. The table announces the host to that
// sender by unicast, which works where multicast does not. Anyone can forge such
// datagrams, so the table answers each sender once a second at most, then less often,
// and at most [maxNoticeRate] senders per second in all.
type Stray struct {
	GID hca.GID
	QPN hca.QPN
}

// Tick says that time has passed; see [Table.NextDeadline].
type Tick struct{}

func (FromHost) event()        {}
func (FromFabric) event()      {}
func (Attached) event()        {}
func (Detached) event()        {}
func (AHReady) event()         {}
func (AHFailed) event()        {}
func (HostAddrs) event()       {}
func (HostMAC) event()         {}
func (HostPortChanged) event() {}
func (HostNeighbours) event()  {}
func (HostAsks) event()        {}
func (Stray) event()           {}
func (Tick) event()            {}

// Action is an output of [Table.Step], to be done in the order given. Slices in
// an action are fresh; they become the receiver's.
type Action interface{ action() }

// SendFabric sends an IPoIB message, header included.
type SendFabric struct {
	Dest hca.UDDest
	Msg  []byte
}

// SendHost writes an Ethernet frame, without virtio header, to the host.
type SendHost struct{ Frame []byte }

// CreateAH asks for a handle to a unicast GID. IDs are never used twice.
type CreateAH struct {
	ID   uint64
	DGID hca.GID
}

// DestroyAH gives a handle back. It may be closed once the data path has let go
// of the snapshot LastEpoch, the last one that may contain it, and of every
// SendFabric that came before this action. 0: no one has ever seen it.
type DestroyAH struct {
	AH        hca.AH
	LastEpoch uint64
}

// Publish replaces the data path's snapshot. A Step has at most one, its last
// action.
type Publish struct{ Snapshot *Snapshot }

func (SendFabric) action() {}
func (SendHost) action()   {}
func (CreateAH) action()   {}
func (DestroyAH) action()  {}
func (Publish) action()    {}
