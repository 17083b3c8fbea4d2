package neigh

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// Event is an input of [Table.Step]. The caller keeps ownership of slices in an
// event; the table copies the data it needs.
type Event interface{ event() }

// FromHost is an Ethernet frame from the host that the data path could not handle:
// ARP, RARP, ND, DHCP, IGMP, MLD, an unknown destination, or an unknown source. The data path drops
// ND behind extension headers ([ipoib.HidesND]).
type FromHost struct{ Frame []byte }

// FromFabric is a message from the fabric that is not for the data path: ARP,
// RARP, ND, DHCP, a query of IGMP or MLD, an echo, or an IP packet for an unknown station.
type FromFabric struct {
	Msg       []byte // IPoIB header and body
	From      hca.UDSource
	Multicast bool // the GRH's destination is a group
}

// Attached reports that the QP is up with this address, or that its attributes
// have changed. The table announces a new Self to the fabric.
type Attached struct {
	Self      ipoib.Addr
	Broadcast hca.UDDest // the broadcast group
	// Groups are the groups to which the QP is attached, by MGID; the table copies the
	// map. Messages to any other group go to the broadcast group. While the QP stays
	// attached, the table returns the handle of a group that is missing from the next
	// Attached, with [DestroyAH].
	Groups map[hca.GID]hca.UDDest
	// LID is the base LID of an InfiniBand port, and LMC the number of its path bits; on RoCE both are 0. All
	// ports of the subnet have that LMC. With another one the table forgets the paths.
	LID  hca.LID
	LMC  uint8
	QKey hca.QKey
	MTU  int // largest IP packet in bytes
	// PortMTU is the same, of the port: it bounds echo requests, which may try whether a path carries more
	// than the MTU. 0: the MTU.
	PortMTU int
}

// Detached reports that the QP is gone and its handles are void. The table
// drops kept messages; peers stay, without a handle.
type Detached struct{}

// AHReady answers [CreateAH]. Every CreateAH is answered exactly once, by
// AHReady or by [AHFailed], however late.
type AHReady struct {
	ID uint64
	AH hca.AH
}

// AHFailed answers [CreateAH]. [hca.ErrInvalid] and [hca.ErrRange] are final;
// after any other error the table retries.
type AHFailed struct {
	ID  uint64
	Err error
}

// PathFound answers [FindPath] on an InfiniBand port. Every FindPath is answered exactly once, by PathFound or by
// [PathFailed], however late, unless Detached comes first. There may be further PathFound for the same GID.
type PathFound struct {
	GID  hca.GID
	Path hca.UDPath
}

// PathFailed answers [FindPath]: there is no path, or the subnet administrator does not answer. A path that was found
// earlier stays in use.
type PathFailed struct{ GID hca.GID }

// HostAddrs are all the host's addresses on this link, each with the length of its network's
// prefix: the addresses of ib0, or of the bridge that ib0 is a port of, without tentative ones.
// Addresses beyond [maxHostAddrs] are ignored. The table announces new ones.
type HostAddrs struct{ Addrs []netip.Prefix }

// HostMAC is ib0's own Ethernet address.
type HostMAC struct{ MAC ipoib.MAC }

// HostPort reports whether ib0 is up, and what it is a port of. If that has changed, but for the MAC of the
// bridge, which depends on its other ports, the stations behind ib0 are no longer known.
type HostPort struct {
	Up     bool
	Bridge int       // its index; 0: ib0 is no port
	Master ipoib.MAC // of the bridge; zero: ib0 is no port
}

// HostNeighbours are the kernel's neighbour entries on ib0. They serve as hints
// for a restarted table, which does not know the contents of the host's cache.
// They replace earlier hints, but not what the table remembers of removed peers.
// Entries beyond [maxHints] are ignored.
type HostNeighbours struct{ Entries []Neighbour }

// Neighbour is an entry of the kernel's neighbour table.
type Neighbour struct {
	IP  netip.Addr
	MAC ipoib.MAC
}

// HostAsks are addresses that the host is resolving: its requests were lost while
// the link was down, and it repeats them only after a second (RETRANS_TIMER of
// RFC 4861 section 10). The table sends one request for each in the host's name.
// Addresses beyond [maxHostAsks] are ignored.
type HostAsks struct{ Targets []netip.Addr }

// Stray reports datagrams for a QPN that does not exist on this host: their sender
// still uses an address from before a restart. The table announces the host to that
// sender by unicast, which works even if multicast does not. Anyone can forge such
// datagrams, so the table answers each sender at most once a second at first and then
// less often, and at most [maxNoticeRate] senders per second in total.
type Stray struct {
	GID hca.GID
	QPN hca.QPN
}

// Ping sends an echo request to a peer: to the owner of IP, which is resolved first if it is not
// known, or, if IP is invalid, to a GID and QPN. The table drops a request to an address of the
// host, and to an unknown GID and QPN. The answer, if any, is an [EchoReply].
type Ping struct {
	ID   uint64 // chosen by the caller; others cannot guess it if it is random
	Size int    // bytes without IPoIB header, from ipoib.MinEcho to the MTU of the port
	IP   netip.Addr
	GID  hca.GID
	QPN  hca.QPN
}

// Restored are the peers, and the stations behind ib0, of a former table of this interface. The table
// does not check them, so they must come from a process that is trusted; it ignores those that no
// table can have. It requests handles of the used peers as soon as it is attached. It is empty before.
type Restored struct {
	Peers    []PeerInfo
	Stations []StationInfo
}

// DataIdle reports whether the data path is idle: then it sets no marks, and the table reads none. An event
// with Idle false must follow the first frame.
type DataIdle struct{ Idle bool }

// Carried reports traffic of a peer that bypassed the data path since the last Carried, in bytes of IP packets. The table
// treats it as data.
type Carried struct {
	MAC         ipoib.MAC
	Sent, Heard uint64
}

// Tick has no effect but the passing of time; see [Table.NextDeadline].
type Tick struct{}

func (DataIdle) event()       {}
func (Carried) event()        {}
func (FromHost) event()       {}
func (FromFabric) event()     {}
func (Attached) event()       {}
func (Detached) event()       {}
func (AHReady) event()        {}
func (AHFailed) event()       {}
func (PathFound) event()      {}
func (PathFailed) event()     {}
func (HostAddrs) event()      {}
func (HostMAC) event()        {}
func (HostPort) event()       {}
func (HostNeighbours) event() {}
func (HostAsks) event()       {}
func (Stray) event()          {}
func (Ping) event()           {}
func (Restored) event()       {}
func (Tick) event()           {}

// Action is an output of [Table.Step]. Actions must be done in the order given.
// Slices in an action are fresh and belong to the receiver.
type Action interface{ action() }

// SendFabric sends an IPoIB message, including its header.
type SendFabric struct {
	Dest hca.UDDest
	Msg  []byte
}

// SendHost writes an Ethernet frame, without virtio header, to the host.
type SendHost struct{ Frame []byte }

// FindPath requests the path to a port of the subnet. There is at most one unanswered request for a GID. On RoCE
// there are none.
type FindPath struct {
	GID   hca.GID
	Again bool // a path was found, but may have changed: an answer from before does not count
}

// CreateAH requests a handle for a unicast GID. IDs are never reused.
type CreateAH struct {
	ID   uint64
	DGID hca.GID
	Path hca.UDPath // to it; on RoCE it is zero
}

// DestroyAH returns a handle. The handle may be closed once the data path no
// longer uses the snapshot LastEpoch, the last one that may contain it, nor any
// SendFabric before this action. If LastEpoch is 0, the handle was never used.
type DestroyAH struct {
	AH        hca.AH
	LastEpoch uint64
}

// EchoReply is the answer of a peer to a Ping. Anyone may send one with any ID.
type EchoReply struct {
	ID   uint64
	GID  hca.GID
	QPN  hca.QPN
	Size int // bytes without IPoIB header
}

// GroupsChanged reports that [Table.Groups] may return something else, on an InfiniBand port. On RoCE there are none.
type GroupsChanged struct{}

// Publish replaces the data path's snapshot. A Step has at most one Publish, as
// its last action.
type Publish struct{ Snapshot *Snapshot }

func (SendFabric) action()    {}
func (SendHost) action()      {}
func (FindPath) action()      {}
func (CreateAH) action()      {}
func (DestroyAH) action()     {}
func (EchoReply) action()     {}
func (GroupsChanged) action() {}
func (Publish) action()       {}
