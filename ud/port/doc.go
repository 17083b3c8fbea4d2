// Package port decides how an interface uses an HCA port: which entries of the GID and P_Key
// tables, and which groups. The package is pure: [MakePlan] makes a [Plan] from
// [hca.PortAttr] and the requirements of the interface.
//
// # Ethernet
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
//	group MTU          the MaxPayload of the GID in use, or less if a path carries less
//	GID                among the GIDs of type RoCE v2, the first IPv4 GID, else the
//	                   first global IPv6 GID, else the link-local one; among GIDs
//	                   of equal rank, the one in use
//
// One IP group for all IPoIB groups suffices, because the host drops the multicast that it
// has not asked for.
//
// # InfiniBand
//
// A port of InfiniBand needs a subnet manager, and a membership of the partition's broadcast group, which defines
// the link (RFC 4391 section 5): until the subnet administrator has granted it, there is no plan ([ErrNoGroup]).
// Everything that is a constant on Ethernet comes from it. Messages within the subnet have no GRH.
//
// A port receives the messages of a group only as its member, so the interface joins those that the host and the
// stations behind it want, as many as [MulticastList] allows. Messages to any other group go to the broadcast group.
//
// # Changes
//
// An interface follows its plan. Another port, GID, P_Key or broadcast group needs another queue pair. Another index
// of the P_Key needs a reset of the queue pair ([Plan.SameExceptPKeyIndex]), which keeps its number. Everything else
// changes while the queue pair is in use ([Plan.SameExceptGroups]): the groups to which it is attached, their
// MLIDs, the Q_Key, its own LID.
package port
