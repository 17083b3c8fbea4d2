package port

import (
	"net/netip"

	"ipoibd/hca"
)

// Group parameters that replace a subnet manager's; see the package documentation.
const (
	GroupHops    = 1 // hop limit of messages to a group, whose scope is one link
	UnicastHops  = 64
	NoMulticastL = 0 // MLID on Ethernet
)

// QKey is the Q_Key of every group.
const QKey hca.QKey = 0x0b1b

// groupIPv4 carries all IPoIB groups of an IPv4 port. Its scope is organisation-local (RFC
// 2365), and its last 16 bits are the number 4791.
var groupIPv4 = netip.AddrFrom4([4]byte{239, 192, 18, 183})

// Group is a multicast group of a port.
type Group struct {
	MGID   hca.GID // the IPoIB group
	Attach hca.GID // the GID that the QP attaches to and sends to
	MLID   uint16
	QKey   hca.QKey
}

// GroupAH returns the data of the address handle of a group.
func (p Plan) GroupAH(g Group) hca.AHSpec {
	return hca.AHSpec{
		Port:      p.Port,
		DLID:      g.MLID,
		Global:    true,
		DGID:      g.Attach,
		SGIDIndex: p.GIDIndex,
		HopLimit:  GroupHops,
	}
}

// Membership returns the data with which a queue pair attaches to a group.
func (p Plan) Membership(g Group) hca.MulticastGroup {
	return hca.MulticastGroup{MGID: g.Attach, MLID: g.MLID, SGIDIndex: p.GIDIndex}
}

// PeerAH returns the data of the address handle of a peer.
func (p Plan) PeerAH(gid hca.GID) hca.AHSpec {
	return hca.AHSpec{Port: p.Port, Global: true, DGID: gid, SGIDIndex: p.GIDIndex, HopLimit: UnicastHops}
}
