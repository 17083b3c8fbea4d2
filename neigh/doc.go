// Package neigh is the neighbour table of an interface. To the host, it makes
// the fabric, whose addresses are 20 bytes of queue pair and GID, look like an
// Ethernet, whose addresses are MACs. It is pure: time and events go in,
// actions come out ([Table.Step]), and the data path reads an immutable
// [Snapshot].
//
// # Peers
//
// A peer is an interface on the fabric: a GID and a QPN. For the host it has a
// MAC, which is a hash of its GID or, if another peer or the host already has
// that MAC, a rehash. The table adds a peer when it receives ARP or ND from it;
// the MAC does not change during the lifetime of the entry. If another QPN of the
// same GID claims an address of the peer, and the peer has sent no data for a second,
// the peer was restarted: the table changes its QPN and keeps its MAC, so the host need
// not resolve it again. If the peer still sends data, only the address has moved, such as
// that of a guest, and the QPN is another interface of that host, with its own MAC, as is
// one that claims a different address.
//
// The host's cache can keep the MAC of a removed peer forever. The table therefore
// remembers the addresses of removed peers, with the same bounds as for peers. No other
// peer gets the MAC of a removed one. A removed peer gets its MAC back when it is heard
// at the same endpoint or claims one of its addresses at the same GID. After a restart of
// the table, the kernel's entries serve the same purpose: an interface does not get the
// MAC of an entry if it claims a different address of that kind, by family and scope.
//
// There are two classes. The host has sent no data to a heard peer; there are at most
// [Config.MaxHeard] heard peers, and a new one evicts the one heard longest ago. A used
// peer is not evicted to make room in its class while it is busy. There are at most 256
// peers per GID, and a new one evicts another of that GID. A flood of invented peers
// therefore only replaces heard peers, at O(1) each, and honest peers stay. An answer
// to an ARP request does not make its receiver a used peer.
//
// # Snapshots
//
// The two indexes of a snapshot, by MAC for sending and by endpoint for receiving, are
// divided into maps that successive snapshots share. A change copies only the maps of the
// peer. A peer with the plain MAC is in a snapshot only while it has a handle, so a flood of
// announcements does not change the snapshot. An attacker who chooses GIDs can put many peers
// into one map. The pause after a snapshot is therefore proportional to the number of entries
// that were copied.
//
// # Handles
//
// The table requests a handle (AH), by [CreateAH], when the host first sends to a
// peer, and keeps messages until the handle is ready. When a peer falls silent, it requests another
// handle in place of that one. handleState has the states.
//
// # InfiniBand
//
// On a port of an InfiniBand subnet ([Attached.LID]), what a peer sends to one receiver has no GRH. Its
// port is known by the source LID, without path bits, which the device of the sender sets. So another index
// has the peers by LID and QPN, and the snapshot has its senders by those. The 20-byte address in ARP and ND is only a
// claim until the subnet administrator has confirmed that the path to its GID leads to that LID ([FindPath]);
// type lids has the rules. A handle needs the path first. If the LID of a peer changes, its next ARP or ND, or
// its silence, causes one request, and the handle in use is replaced once the new one is ready.
//
// # Translation
//
// ARP and RARP bodies and the link-layer address options of ND are translated in
// both directions; everything else passes unchanged. The hardware address in a
// message from the fabric must be the sender's according to the completion
// and the GRH, or the path; the one in a message from the host must be the host's. Only a
// Redirect may contain another node's address: its target is looked up.
//
// # Resolution
//
// The host's cache may outlive this table, so frames can arrive for a MAC of no known
// peer. The table keeps them and resolves the IP address that the kernel associates
// with that MAC, or else the frame's own destination. The answer is passed to the
// host as usual and corrects its cache; the frames go to the peer that answered. If
// the address is already bound to a peer, the frame goes there at once, and the table
// corrects the host's cache in that peer's name. For the MAC of a removed peer the
// table resolves an address of that peer.
//
// # Echoes
//
// [Ping] sends an echo request to a peer, resolving its address first if necessary. Requests of
// known peers are answered, at most [maxEchoRate] a second, with replies of the same size. An
// echo does not pass through the hosts' TAPs or IP, and does not make its receiver a used peer. A
// request to a peer that is not a used one is preceded by a request for its address, so that the
// peer knows this host even if it has missed its announcements.
//
// # Stations
//
// A station is a MAC on the host's side: ib0's own, that of the bridge that ib0 is a port of, and those
// behind them. The wire carries no MACs, so a frame for the host goes to the station that has its IP
// address. The table learns stations from the frames that they send, and their addresses from ARP, ND
// and DHCP, never from IP packets, since a station may route. The addresses that netlink reports are at
// home: at the bridge, or at ib0 itself. What is sent to the broadcast address of a network is for all.
//
// For an address in a network of the host that no station is known to have, the table keeps the frames,
// and asks on ib0 in the name of their sender. Without an answer within a second, they go to the fallback,
// as do those to other networks: for IPv6 the station that is the router, if there is one, else home. A
// claim of a peer takes an address from its station, but what still arrives for it goes there for a while,
// because the claim may be forged.
//
// A new address of the interface or of the host is announced by gratuitous ARP
// and unsolicited neighbour advertisements, four times within 3 s and three
// more times within a minute.
//
// # Groups
//
// The table learns from IGMP and MLD reports which IP multicast groups the stations have joined. Where
// it hears no other querier, it asks for them. On an InfiniBand port each change is reported ([GroupsChanged]), since
// the port must be a member of a group to receive its messages.
//
// # Lost announcements
//
// If a host restarts and its announcements are lost, both sides recover:
//
// The peers: their snapshots mark each peer that data was sent to or received from. If
// data was sent to a peer that has then been silent for a second, the table sends
// requests for its addresses. Peers that have sent data before go first. The new queue
// pair answers.
//
// The restarted host: [Stray] reports that a peer still sends to the former queue
// pair. The table then announces the host to that peer by unicast, which works even
// if multicast does not.
//
// A host that lost its neighbours together with its carrier waits for answers to
// requests that were never sent. On [HostAsks] the table sends them in the
// host's name.
//
// # Timers
//
//	resolution      3 requests, 1 s apart, then its frames are dropped
//	station         3 requests, 1/3 s apart, then the fallback, for a minute
//	query           1 s and 32 s after the port is up, then each 125 s; 255 s after one of another querier
//	doubt           3 requests, 0.1 s apart, to a peer, if another QPN has claimed one of its addresses
//	handle          3 tries, 1 s and 2 s apart, then the peer is left alone for 10 s
//	path            an answer stands for 2 s against claims that it does not prove; for a silent peer for 10 s
//	announcement    0, 0.25 s, 1 s, 3 s, 8 s, 20 s, 60 s after the change
//	silence         the table asks for a peer that was sent data and is silent for 1 s,
//	                and again after 2, 4, 8 ... 60 s; it reads the marks each 0.25 s
//	stray notice    of one address at once, and of all after 1, 2, 4 ... 30 s, as
//	                long as the peer sends there; 16 a second, 4 of them to one GID
//	collection      used peers after 10 min; heard ones, and those whose addresses
//	                are elsewhere now, after 2 min; looked at each 15 s. A silent one, if another
//	                QPN of its GID has claimed one of its addresses: after 0.3 s
//	snapshot        at once if the QP or the host's MAC has changed; otherwise no two
//	                within 200 us, plus 4 us for each copied entry. For a new QPN of a peer:
//	                at once, up to 16 times a second, and then within 50 ms. For a
//	                handle that carries no data of the host, for a new peer whose MAC is a
//	                rehash, and for a peer that becomes a used one: within 50 ms
//
// # Limits
//
// Every frame ends in exactly one counter of [Stats]. The constants of limits.go bound
// all that the table keeps. At most 16 requests a second are sent for silent peers: if
// thousands fall silent together, it takes minutes to cover them all. A one-way flow
// costs one request a minute; if its receiver restarts and the announcements are lost,
// the flow is interrupted for up to a minute. The table's own messages and those that it
// forwards to a group are sent to the broadcast group. In a DHCP request of a client without an
// address, it sets the broadcast flag; it translates DHCP only with [DHCPRFC4390], the default on InfiniBand.
package neigh
