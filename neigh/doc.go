// Package neigh is the neighbour table of an interface: it makes the fabric,
// where an address is 20 bytes of queue pair and GID, look to the host like an
// Ethernet, where it is a MAC. It is pure: time is passed in, events go in,
// actions come out ([Table.Step]), and what the data path needs is published as
// an immutable [Snapshot].
//
// # Peers
//
// A peer is an interface on the fabric: a GID and a QPN. Towards the host it has
// a MAC that is a hash of its GID; where that is taken, by another peer or by the
// host, a rehash. A peer comes to be when it is heard, by ARP or ND, and its MAC
// stays for as long as the entry does. When an address that is bound to it is
// claimed from another QPN of the same GID, the peer was restarted: its QPN is
// changed, its MAC kept, so the host need not ask again. A QPN that claims
// something else is another interface of that host, with a MAC of its own.
//
// The host's cache can keep the MAC of a forgotten peer for ever. So the table remembers
// the names of as many forgotten peers as it holds peers, within the same bounds. No
// other peer gets such a MAC. A forgotten peer gets it again when it is heard at the same
// endpoint, or claims one of its addresses at the same GID. After a restart of the table
// the kernel's entries serve in the same way: an interface does not get the MAC of an
// entry if it claims another address of that kind, by family and scope.
//
// There are two classes. A heard peer is one to which the host has sent no data; there
// are at most [Config.MaxHeard], and a new one evicts the one heard longest ago. A used
// peer is not evicted to make room in its class as long as it is busy. There are at
// most 256 peers of one GID, and a new one evicts another of that GID. So a flood of
// invented peers turns over the first class, at O(1) each, and honest peers stay. An
// answer to an ARP request does not make its receiver a used peer.
//
// # Handles
//
// A handle (AH) is asked for, by [CreateAH], when the host sends to a peer for the
// first time; until it comes the messages are kept. The states are those of
// handleState.
//
// # Translation
//
// ARP and RARP bodies, and the link-layer address options of ND, are translated
// both ways, everything else passes unchanged. The hardware address in a message
// of the fabric must be that of its sender, as completion and GRH have it; the
// one in a message of the host must be the host's. Only a Redirect names another
// node: its target is looked up.
//
// # Resolution
//
// The host's cache may outlive this table, and then frames come for a MAC that
// nobody has. They are kept while the address that the kernel believes to be
// there, or else their own destination, is asked for. The answer goes to the
// host like any other and corrects its cache; the frames go to the peer that
// answered. Where the address is bound to a peer already, the frame goes there at
// once and the host is corrected in that peer's name. For the MAC of a forgotten peer
// the table asks for an address of that peer.
//
// # The host's side
//
// ib0's own MAC may always send. If ib0 is the port of a bridge, the first other
// MAC seen may as well, and unicast frames towards the host are addressed to it;
// a second one is refused until the first was silent for 300 s.
//
// A new address of ours, and a new address of the host, are announced: four
// times within 3 s and three times more within a minute, by gratuitous ARP and
// unsolicited neighbour advertisements.
//
// # Lost announcements
//
// If a host restarts and its announcements are lost, both sides repair that.
//
// The peers: their snapshots mark to whom data was sent and from whom it was received.
// A table asks for a peer that was sent data and has been silent for a second. Peers
// that have sent data before go first. The new queue pair answers.
//
// The restarted host: [Stray] reports that a peer still sends to a queue pair that is
// gone. The table then announces the host to that peer alone, which works even if the
// fabric carries no multicast.
//
// A host that lost its neighbours with its carrier waits for answers to requests
// that were never sent. [HostAsks] has them asked for in its name.
//
// # Timers
//
//	resolution      3 requests, 1 s apart, then its frames are dropped
//	handle          3 tries, 1 s and 2 s apart, then the peer is left alone for 10 s
//	announcement    0, 0.25 s, 1 s, 3 s, 8 s, 20 s, 60 s after the change
//	silence         the table asks for a peer that was sent data and is silent for 1 s,
//	                and again after 2, 4, 8 ... 60 s; it reads the marks each 0.25 s
//	stray notice    of one address at once, and of all after 1, 2, 4 ... 30 s, as
//	                long as the peer sends there; 16 a second, 4 of them to one GID
//	collection      used peers after 10 min; heard ones, and those whose addresses
//	                are elsewhere now, after 2 min; looked at each 15 s
//	snapshot        at once if the QP or the host's MAC has changed; otherwise no two
//	                within 2.5 us times the number of peers. For a new QPN of a peer:
//	                at once, up to 16 times a second, and then within 50 ms. For a
//	                handle that the host sends no data by, and for a new peer whose MAC
//	                is a rehash: within 50 ms
//
// # Limits
//
// Every frame ends in exactly one counter of [Stats]. The constants of limits.go bound
// all that the table keeps. At most 16 messages a second ask for silent peers: if
// thousands fall silent together, it takes minutes to ask for each. A one-way flow costs
// one question a minute; if its receiver restarts and the announcements are lost, the
// flow is interrupted for up to a minute. Without a subnet manager all groups are the
// broadcast group. DHCP is not translated. One MAC lives behind ib0 besides its own.
package neigh
