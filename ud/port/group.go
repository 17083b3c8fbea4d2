package port

import (
	"net/netip"

	"ipoibd/hca"
)

// Group parameters that replace a subnet manager's on Ethernet; see the package documentation.
const (
	GroupHops   = 1 // hop limit of messages to a group, whose scope is one link
	UnicastHops = 64
)

// QKey is the Q_Key of every group on Ethernet.
const QKey hca.QKey = 0x0b1b

// groupIPv4 carries all IPoIB groups of an IPv4 port. Its scope is organisation-local (RFC
// 2365), and its last 16 bits are the number 4791.
var groupIPv4 = netip.AddrFrom4([4]byte{239, 192, 18, 183})

// Group is a multicast group of a port. On InfiniBand it has the parameters that the subnet administrator has granted
// (MCMemberRecord, IBA 15.2.5.17).
type Group struct {
	MGID   hca.GID // the IPoIB group
	Attach hca.GID // the GID that the QP attaches to and sends to
	QKey   hca.QKey
	MTU    hca.MTU    // of the group; 0 on Ethernet
	Path   hca.UDPath // of messages to it; its DLID is the MLID
}

// handle returns the data of an address handle for a path. Messages along it have a GRH if it is global.
func (p Plan) handle(dgid hca.GID, path hca.UDPath, global bool) hca.AHSpec {
	ah := hca.AHSpec{Port: p.Port, DLID: uint16(path.DLID), SL: path.SL, Rate: path.Rate}
	if global {
		ah.Global, ah.DGID, ah.SGIDIndex = true, dgid, p.GIDIndex
		ah.Traffic, ah.FlowLabel, ah.HopLimit = path.Traffic, path.FlowLabel, path.HopLimit
	}
	return ah
}

// GroupAH returns the data of the address handle of a group.
func (p Plan) GroupAH(g Group) hca.AHSpec { return p.handle(g.Attach, g.Path, true) }

// Membership returns the data with which a queue pair attaches to a group.
func (p Plan) Membership(g Group) hca.MulticastGroup {
	return hca.MulticastGroup{MGID: g.Attach, MLID: uint16(g.Path.DLID), SGIDIndex: p.GIDIndex}
}

// PeerAH returns the data of the address handle of a peer. path is zero on Ethernet. On InfiniBand a message has a GRH
// only if routers carry it: the path then has a hop limit (IBA 8.3.6), and leads to the router.
func (p Plan) PeerAH(gid hca.GID, path hca.UDPath) hca.AHSpec {
	if !p.InfiniBand() {
		return p.handle(gid, hca.UDPath{HopLimit: UnicastHops}, true)
	}
	return p.handle(gid, path, path.HopLimit > 0 && !sameSubnet(gid, p.GID))
}

// SelfAH returns the data of the address handle of this port.
func (p Plan) SelfAH() hca.AHSpec {
	return p.PeerAH(p.GID, hca.UDPath{DLID: p.LID, SL: p.Broadcast().Path.SL})
}

// sameSubnet reports whether two GIDs have the same subnet prefix (IBA 4.1.1).
func sameSubnet(a, b hca.GID) bool { return [8]byte(a[:8]) == [8]byte(b[:8]) }
