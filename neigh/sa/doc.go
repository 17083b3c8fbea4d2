// Package sa is the client of one port of an InfiniBand subnet for its subnet
// administrator (SA): it keeps the port's memberships in multicast groups, and asks for
// paths. It is pure: time and events go in, actions come out ([Client.Step]). A shell
// owns the queue pair that the MADs pass through, and a [Client] for each port.
//
// # Requests
//
// A request belongs to what it is about: a membership, a path, or the ClassPortInfo. So
// however many interfaces ask, the same question is asked once at a time. At most 16
// requests of a port are outstanding; the others wait, memberships before paths. A
// request without an answer is repeated 0.5, 1, 2 and 4 s after the first try, and then less
// and less often, up to every 16 s: each pause is as long as the SA has been silent. While it
// answers other requests, the pauses are as short as 0.5 s, because most likely only MADs are
// lost. A request stops being outstanding after 0.5 s, so that 16 lost MADs do not hold up
// all others, but its answer still counts. If the SA has answered faster lately, it stops
// after four times as long as the slowest answer took, but not before 0.1 s. A second answer
// shows that a request was repeated too early: then pauses are up to 2 s, and slots 0.5 s.
//
// The specification gives the SA longer than 0.5 s to answer: twice the SubnetTimeout of
// the port, and the RespTimeValue of its ClassPortInfo. While the SA is silent, that time
// is the least pause from the fourth on. No missing answer is reported before it is over.
//
// Only an answer counts that comes from QP1 of the SM LID, has the transaction and the
// kind of an open request, and is about the same group or port. All others are counted
// by their [Refusal]. BUSY postpones a request, by longer and longer pauses up to 2 s. A
// redirect is a failure.
//
// # Memberships
//
// A membership belongs to the port, not to a queue pair, and is counted over its
// interfaces ([Owner]). groupState has the states. The group is joined as full member if
// one of its owners receives from it. Owners that only send use the join state of
// send-only full members if the SA knows it, so these joins wait for the ClassPortInfo.
// When the last owner that receives has left, but not the others, the membership stays
// as it is.
//
// The broadcast group of a partition is joined by its MGID and P_Key; it must exist. All
// other groups are joined, or created, with its parameters. If these change, the others
// are joined again.
//
// The kernel's own IPoIB interfaces on the same port join and leave the same groups, and
// their leaving ends the memberships of this client. So memberships are renewed: the
// broadcast group each minute, others each ten minutes, and all of them when the kernel wants
// fewer groups than before ([KernelGroups]). And the client leaves neither a broadcast group
// nor a group that the kernel wants. The subnet manager drops the memberships of a port that
// goes down.
//
// # Events
//
//	light    Reregister, SMChange, a new SM LID: all memberships are set again, without
//	         leaving; paths are stale, which means that they are used and, when they are
//	         next wanted, asked for again
//	normal   LIDChange, a new LID: all memberships are set again; paths are forgotten
//	down     PortDown, a view without a usable port: everything is forgotten, and begins
//	         with the next view of a usable one
//
// Joins after a light event are spread over half a second, because a restarted subnet
// manager asks all hosts at once. A second event within two seconds is followed a second
// after the first, and further ones only each 10 s, until there was none for two seconds. Six
// joins may follow events without such a pause, and one more for each 10 s.
//
// # Paths
//
// The cache keeps [Config.MaxPaths] paths, and forgets the one that was wanted longest ago. What the
// SA refuses is remembered for a second. A query ends after 30 s at the latest. If a
// peer's LID changes, the caller sees packets from another LID than that of the path, for
// each of them; [RefreshPath] leads to one query.
//
// # Timers
//
//	time-out      0.1 to 0.5 s; then a pause, so that tries are 0.5, 0.5, 1, 2, 4, 8, 16 s apart,
//	              or 0.5 s while the SA answers other requests
//	renewal       60 s for a broadcast group, 10 min for others, each within an eighth
//	refused join  again after 1, 2, 4, 8, 16 s, within an eighth
//	path          asked for again, if wanted, after 10 min; 1 s after a refusal
//	refresh       of one path: at most each second
//
// # Limits
//
// GetTable, notices, subscriptions and redirects are not supported. The client does not
// create broadcast groups. A join state is never reduced, only deleted as a whole. The
// constants of limits.go bound everything that is kept.
package sa
