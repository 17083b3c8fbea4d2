package port

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// What a subnet manager would have said. See the package's comment.
const (
	ScopeLocal   = 2
	GroupHops    = 1 // hop limit of what goes to a group: the scope is one link
	UnicastHops  = 64
	NoMulticastL = 0 // MLID on Ethernet
)

// QKey is the Q_Key of every group.
const QKey hca.QKey = 0x0b1b

// groupIPv4 carries all IPoIB groups of an IPv4 port: organisation-local scope
// (RFC 2365), its last 16 bits the number 4791.
var groupIPv4 = netip.AddrFrom4([4]byte{239, 192, 18, 183})

// Group is a multicast group as the port uses it.
type Group struct {
	MGID   hca.GID // the IPoIB group
	Attach hca.GID // the GID that the QP attaches to and sends to
	MLID   uint16
	QKey   hca.QKey
}

func broadcastGroup(gid hca.GID, w Want) Group {
	mgid := ipoib.BroadcastMGID(ScopeLocal, w.PKey)
	return Group{MGID: mgid, Attach: carrier(gid, mgid), MLID: NoMulticastL, QKey: QKey}
}

// carrier returns the GID that carries a group for a port that uses gid.
func carrier(gid, mgid hca.GID) hca.GID {
	if gid.Addr().Is4() {
		return hca.GIDFromAddr(groupIPv4)
	}
	return mgid
}

// GroupAH is the address handle of a group.
func (p Plan) GroupAH(g Group) hca.AHSpec {
	return hca.AHSpec{Port: p.Port, DLID: g.MLID, Global: true, DGID: g.Attach, SGIDIndex: p.GIDIndex, HopLimit: GroupHops}
}

// Membership is how a queue pair attaches to a group.
func (p Plan) Membership(g Group) hca.MulticastGroup {
	return hca.MulticastGroup{MGID: g.Attach, MLID: g.MLID, SGIDIndex: p.GIDIndex}
}

// PeerAH is the address handle of a peer.
func (p Plan) PeerAH(gid hca.GID) hca.AHSpec {
	return hca.AHSpec{Port: p.Port, Global: true, DGID: gid, SGIDIndex: p.GIDIndex, HopLimit: UnicastHops}
}
