// Package port decides how an interface uses an HCA port: which GID and P_Key
// table entries, and which groups. The package is pure: [MakePlan] makes a [Plan] from
// [hca.PortAttr] and what the interface wants. The broadcast group is the only group of
// a plan; groups that are joined at a subnet administrator would follow it.
//
// # Without a subnet manager
//
// On Ethernet there is no subnet manager that could hand out group parameters,
// so these constants stand in its place, and every member must agree on them:
//
//	Q_Key              0x0b1b, the default of kernel IPoIB's groups
//	P_Key              0xffff, the default partition
//	scope              link-local (2)
//	group, IPv4 port   every IPoIB group is carried by 239.192.18.183
//	group, IPv6 port   every IPoIB group is carried by the broadcast MGID,
//	                   ff12:401b:<P_Key>::ffff:ffff, itself an IPv6 address
//	group MTU          the MaxPayload of the GID in use
//	GID                of those of type RoCE v2 the first IPv4 one, else the first
//	                   global IPv6 one, else the link-local one; the one in use
//	                   stays among equals
//
// A port of link layer InfiniBand has a subnet manager, and its groups have to be
// joined there, which nothing does yet: it is refused.
//
// One IP group is enough: the host's own filters drop what they did not ask for.
package port
