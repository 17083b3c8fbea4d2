// Package port decides how an interface uses an HCA port: which entries of the GID and P_Key
// tables, and which groups. The package is pure: [MakePlan] makes a [Plan] from
// [hca.PortAttr] and the requirements of the interface. It puts only the broadcast group into
// a plan; groups that are joined at a subnet administrator follow it.
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
//	group MTU          the MaxPayload of the GID in use, or less if a path carries less
//	GID                among the GIDs of type RoCE v2, the first IPv4 GID, else the
//	                   first global IPv6 GID, else the link-local one; among GIDs
//	                   of equal rank, the one in use
//
// A port with link layer InfiniBand has a subnet manager. Its groups must be joined there,
// which is not implemented yet, so such a port is refused.
//
// One IP group for all IPoIB groups suffices, because the host drops the multicast that it
// has not asked for.
//
// # Adding groups
//
// An interface follows its plan: it attaches the queue pair to the plan's groups, also while
// the queue pair is in use (device/groups.go), finds the destination of a message by its MGID
// and sends messages to all other groups to the broadcast group (neigh/snapshot.go), and
// reports the groups in its status. Only another broadcast group needs a new queue pair. So
// joins at a subnet administrator need a package for the joins and their messages, and these
// changes:
//
//	ud/port/group.go                           what a join returns: MLID, Q_Key, SL, hop limit
//	ud/port/plan.go                            the broadcast group as joined; InfiniBand accepted
//	cmd/ipoibd/internal/iface/groups.go (new)  the interface's joins, which set fabric.joined
//	cmd/ipoibd/internal/iface/run.go           the result of a join: an event, then reconcile
//
// Which groups the host wants, and the paths to peers on InfiniBand, are separate tasks.
package port
