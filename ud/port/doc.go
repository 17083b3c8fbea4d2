// Package port decides how an interface uses an HCA port: which entries of the GID and P_Key
// tables, and which groups. The package is pure: [MakePlan] makes a [Plan] from
// [hca.PortAttr] and the requirements of the interface. The broadcast group is the only group
// of a plan; groups that are joined at a subnet administrator would follow it.
//
// # Without a subnet manager
//
// On Ethernet no subnet manager supplies group parameters. These constants replace them, and
// all members must use the same:
//
//	Q_Key              0x0b1b, the default of kernel IPoIB's groups
//	P_Key              0xffff, the default partition
//	scope              link-local (2)
//	group, IPv4 port   every IPoIB group is carried by 239.192.18.183
//	group, IPv6 port   every IPoIB group is carried by the broadcast MGID,
//	                   ff12:401b:<P_Key>::ffff:ffff, itself an IPv6 address
//	group MTU          the MaxPayload of the GID in use
//	GID                among those of type RoCE v2, the first IPv4 GID, else the
//	                   first global IPv6 GID, else the link-local one; among GIDs
//	                   of equal rank, the one in use
//
// A port with link layer InfiniBand has a subnet manager. Its groups must be joined there,
// which is not implemented yet, so such a port is refused.
//
// One IP group for all IPoIB groups suffices, because the host drops the multicast that it
// has not asked for.
package port
