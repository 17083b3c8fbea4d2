// Package udp carries the software HCA's datagrams over UDP sockets on one netdev. It
// implements [transport.Transport] and monitors the underlay by netlink.
//
// # Sockets
//
// Two sockets, both bound to the netdev by its index, so that several devices
// in one network namespace coexist. One receives on port 4791 (RoCEv2). The other
// sends. Its port is the one in 0xC000-0xFFFF that the MAC selects, or the next free
// one after it; if other processes have them all, the kernel selects a port. A filter
// keeps this socket from receiving. Both are AF_INET6 sockets that carry IPv4 as well,
// so one queue, one wait and one source port serve both families; if the kernel was
// started without IPv6, they are AF_INET sockets.
//
// A [Reserve] keeps both sockets bound after their transport is closed, until the
// next one is opened. Unless there are several lanes, the sockets have neither SO_REUSEADDR
// nor SO_REUSEPORT, so the kernel refuses every other socket on their ports that is bound to
// the same netdev or to none, whatever its address, options and user. A socket bound to
// another netdev receives no datagram of this one. A netdev that was deleted and created
// again has another index: until the new socket is bound, another process can bind its own
// socket to the new netdev. Opening the transport then fails with an error that names that
// process.
//
// A process with CAP_NET_ADMIN can destroy sockets of other processes (SOCK_DESTROY of
// sock_diag(7), as "ss -K" does). The kernel then detaches a socket from its netdev and from its
// SO_REUSEPORT group, and the next call on it fails with ECONNABORTED, which no ICMP error does. From
// then on Send and Recv return hca.ErrIO. The next Open finds that the Reserve holds a socket without
// its netdev, closes all its sockets, and binds new ones. Another process can bind the port between
// these two steps; then Open fails with an error that names that process.
//
// # Sent packets
//
// The ICRC covers the IPv4 identification and the DF bit, so both must be
// known in advance: an unconnected socket with IP_PMTUDISC_PROBE sends DF and
// identification 0, whatever routers have reported. Source address, TTL and TOS are chosen per
// packet by control messages. Multicast leaves through the netdev and is not looped
// back; its TTL is [MulticastTTL] unless the packet specifies another.
// IPv6 datagrams have a UDP checksum; received ones may lack it, as datagrams of
// the Linux Soft-RoCE driver do (UDP_NO_CHECK6_RX).
//
// The identification of a received packet is unknown: a UDP socket does not report it.
//
// # MTUs of paths
//
// RoCEv2 has no path MTU discovery, and a datagram that is too long for its path is lost. But the
// kernel notes the reports of routers (ICMP "fragmentation needed", ICMPv6 "packet too big") about
// datagrams of the sending socket, for each destination, for 10 minutes. [Transport.PathMTU] reads
// what the kernel knows from a socket that is connected to the destination, and
// [Transport.RouteMTU] what the routing table says. A report also fails the next send (EMSGSIZE),
// which [Transport.PathChanged] passes on. These sockets have no source address, so rules that
// select a route by the source do not apply to them.
//
// # Trains
//
// The kernel accepts a train as one message (UDP_SEGMENT) of at most 64 datagrams and 65,507
// bytes. It cuts the message as late as possible, or lets the NIC do it. If the message has DF
// and identification 0, datagram k leaves with identification k. A netdev that accepts the
// train uncut, as a veth does, passes it to the peer as one packet with identification 0, and
// the peer's socket cuts it. Captures on such a netdev show one long packet
// ("ethtool -K DEV tx-udp-segmentation off" avoids that).
//
// A send that the kernel or the NIC cannot cut fails with EIO, for instance because the NIC
// has no checksum offload (before Linux 6.11) or an IPsec policy applies. From then on the
// transport accepts no trains ([Transport.TrainsRefused]). A train whose datagrams are longer
// than the netdev's MTU permits is dropped as a whole.
//
// # Packets from other sockets of this host
//
// A datagram from this host to one of its addresses arrives over the loopback interface, but
// the kernel delivers it to sockets that are bound to the netdev with that address. The kernel
// also loops back the multicast and broadcast datagrams that other sockets send through the
// netdev. Any user can send such datagrams, from any address of the host, so a filter drops
// them, and "socket_drops" counts them.
// Datagrams from other network namespaces of the machine come over a bridge or a veth
// pair, as if from the wire, and are received.
//
// # Lanes
//
// [OpenLanes] opens several transports on one netdev, each with its own two sockets. The
// receiving sockets form an SO_REUSEPORT group, in which a classic BPF program selects a lane:
// the UDP source port modulo the number of lanes. The program needs no capability. The source
// ports of a host's lanes have different remainders, so lane i of a host sends to lane i of a
// peer that has as many lanes. Thus each sending queue of a peer has one receiving lane, the
// kernel coalesces its trains as before, and no traffic moves from one lane to another. All
// multicast arrives at the first lane: the others have IP_MULTICAST_ALL off, and drop broadcasts.
//
// The kernel admits only sockets of the same user to such a group (sk_uid, udp_lib_lport_inuse in
// net/ipv4/udp.c). So no other user can bind the port, and a daemon that runs as a user of its own
// is alone on it, also after its sockets were bound again. If the daemon runs as root, another
// process of root in the same network namespace can join. Giving the sockets to a user as which no
// process runs would prevent that, but takes CAP_CHOWN, with which an attacker in the daemon could
// give away every file that it can open. If the daemon dropped that capability after its start, it
// could not replace the sockets when the underlay is replaced. Nor can the group be closed to new
// members: bind(2) checks only up to the first member that admits one.
//
// The first socket is bound without SO_REUSEPORT, so it detects a port that is taken, as a single
// socket does.
//
// # Batches, blocking and memory
//
// Send and Recv move up to [hca.Batch] packets by one sendmmsg or recvmmsg, on
// message headers, control messages and buffers that are laid out once, and do
// not allocate. Recv waits in the Go runtime's poller; Interrupt ends that wait with a read
// deadline in the past. The sending socket is not in the poller, because each packet that
// leaves the send buffer would wake it. A receive buffer has room for the longest message, a
// train of 64 KiB; datagrams longer than [MaxDatagram] are dropped and counted.
//
// # A full wire, and neighbours that do not answer
//
// One socket sends to all peers. While a neighbour of the underlay is not resolved,
// the kernel keeps packets for it for up to 3 s and charges them to the send buffer
// of that socket. If that buffer were full, packets to all peers would wait. So the
// buffer is larger than all that the kernel keeps for the neighbours of one family:
// unres_qlen_bytes for each (212,992 bytes by default; newer packets displace the
// oldest), for at most gc_thresh3 neighbours (1024). Within these limits neighbours
// that do not answer lose only their own packets, however many they are. Peers behind
// a gateway that does not answer count as one neighbour. No memory is taken before it
// is needed.
//
// The buffer can still fill up in three cases. Without CAP_NET_ADMIN in the initial
// user namespace, a process gets net.core.wmem_max at most, which one or two neighbours
// fill by default: [Transport.SendBuf] reports it, and the daemon warns. An
// administrator may have raised the kernel's limits; about 1200 unresolved neighbours
// fill the buffer. And IPv4 and IPv6 have a neighbour table each, so that both together
// can hold 1200 even by default. Package soft bounds the wait of sends that find the
// buffer full: after a few milliseconds they are dropped.
//
// A full output queue and a full neighbour table drop packets without an error to a plain
// UDP socket. The sending socket has IP_RECVERR and IPV6_RECVERR, so the send fails and
// the packet is counted ("tx_drop_no_buffers"). As a side effect, an ICMP error, which any
// attacker can forge, makes the next send fail, whatever its destination. That send is
// repeated, and the queue of errors is emptied, within bounds. Packets that the kernel
// drops later, such as those kept for a neighbour that never answers, count as sent.
//
// # Group membership
//
// The kernel limits the groups of one socket (20 for IPv4), so separate sockets hold the
// memberships, as many as needed. The receiving socket gets the datagrams to all groups
// of which the netdev is a member.
//
// # Underlay
//
// One goroutine reads the kernel's netlink notifications of links and addresses, and
// drops those that other processes send. When one concerns the netdev, or was lost, it
// lists the netdev's state again; after a burst, at most 20 times a second. So the state
// that it publishes does not depend on the history. It repeats a failed list. Each
// list uses a new socket, so messages that other processes send to netlink ports can
// only delay it.
//
// A deleted netdev stays gone, even if another one with its name is created:
// [WatchNetdevs] reports the new one, and a new Open uses it. Until Close, Send returns
// hca.ErrIO and Recv blocks.
//
// # Close
//
// Descriptors are owned by os.File, whose Close first makes blocked calls return and then
// waits until no call uses the descriptor, so no descriptor is reused during a call. The
// descriptor of the sending socket is closed when the last call on it returns, after 10 ms
// at most. Close closes the sockets, ends the goroutines of the gates, closes the memberships and
// netlink, and then waits for the watcher.
//
// # The fast path
//
// From the first gate on ([Transport.AddGate]), goroutines follow the kernel's routes, its neighbours on
// the underlay, and its IPsec policies. A peer whose next hop the kernel has not resolved gets nothing
// from the fast path. While there are policies, or while the kernel does not say whether there are any,
// all gates stay shut.
package udp
