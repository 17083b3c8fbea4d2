// Package udp carries the software HCA's datagrams over UDP sockets on one
// netdev: a [wire.Transport] whose underlay is followed by netlink.
//
// # Sockets
//
// Two sockets, both bound to the netdev by its index, so that several devices
// in one network namespace coexist. One receives on port 4791 (RoCEv2). One
// sends from a port in 0xC000-0xFFFF that the MAC selects, the next one when it
// is taken, and one that the kernel selects when other processes have them all; it
// receives nothing, by a filter. Both are AF_INET6 sockets that
// carry IPv4 as well, so one queue, one wait and one source port serve the two
// families; where the kernel was started without IPv6 they are AF_INET ones.
//
// A [Reserve] keeps both sockets bound after their transport is closed, until
// the next one is opened. They have neither SO_REUSEADDR nor SO_REUSEPORT, so the
// kernel refuses every other socket on their ports that is bound to the same netdev or
// to none, whatever its address, options and user; sockets that are bound to another
// netdev get no datagram of this one. A netdev that was deleted and made again has
// another index: until the new socket is bound, a process may bind one to the new
// netdev, and the opening then fails with the name of that process.
//
// # What leaves
//
// The ICRC covers the IPv4 identification and the DF bit, so both must be
// known in advance: an unconnected socket with IP_PMTUDISC_PROBE sends DF and
// identification 0, and ignores path MTU messages, which are not authenticated
// (RoCEv2 has no path MTU discovery). Source address, TTL and TOS are chosen per
// packet by control messages. Multicast leaves through the netdev and does not
// come back; its TTL is [MulticastTTL] unless the packet asks for another.
// IPv6 datagrams have a UDP checksum; received ones may lack it, as those of
// the Linux Soft-RoCE driver do (UDP_NO_CHECK6_RX).
//
// # What other sockets of this host send
//
// A datagram to an IPv4 address of this host does not arrive: it comes in over the
// loopback, to which the sockets are not bound. One to an IPv6 address comes in over
// the loopback as well, but the kernel gives it to sockets that are bound to the netdev
// with the address. And it loops back multicast and broadcast that other sockets send
// through the netdev. All of these may be sent by any user and from any address of the
// host. A filter refuses them, and "socket_drops" counts them. Datagrams of other
// network namespaces of the machine come over a bridge or a veth pair as from the
// wire, and are received.
//
// # Batches, blocking and memory
//
// Send and Recv move up to [hca.Batch] datagrams by one sendmmsg or recvmmsg, on
// message headers, control messages and buffers that are laid out once, and do
// not allocate. Recv waits in the Go runtime's poller. A receive buffer is
// [MaxDatagram] bytes; longer datagrams are dropped and counted.
//
// # A full wire, and neighbours that do not answer
//
// One socket sends to all peers. While a neighbour of the underlay is not resolved,
// the kernel keeps packets for it for up to 3 s and charges them to the send buffer
// of that socket. Were that buffer full, packets to everyone would wait. So it is
// larger than what the kernel keeps for neighbours at all: unres_qlen_bytes for each
// (212,992 bytes by default, the oldest packets give way to newer ones), of at most
// gc_thresh3 (1024). Within these limits a neighbour that does not answer costs its
// own packets only, however many there are and for whatever reason this host sends to
// them, without a guess at which of them are alive. Peers behind a gateway that does
// not answer count as one neighbour. No memory is taken before it is needed. Three
// things narrow this. A process without CAP_NET_ADMIN in the initial user namespace
// gets net.core.wmem_max at most, which by default a neighbour or two fill:
// [Transport.SendBuf] shows it, and the daemon warns. An administrator may have raised
// the kernel's limits, so that more than some 1200 neighbours can wait. IPv4 and IPv6
// have a table each, so some 600 of both together are enough. Sends that then find the
// buffer full are bounded by package soft: after a few milliseconds they are dropped.
//
// A queue on the way out that is full, or a full neighbour table, drops packets, of
// which a plain UDP socket learns nothing. The sending socket has IP_RECVERR and
// IPV6_RECVERR, so such a loss is an error of the send and is counted by packet
// ("no_buffers"). Their price is that ICMP errors, which anyone can forge, fail the
// next send whatever its destination: that send is repeated, and the queue of errors
// is emptied, within bounds. What the kernel drops later, such as packets kept for a
// neighbour that turns out not to answer, counts as sent.
//
// # Group membership
//
// The kernel limits the groups of one socket (20 for IPv4), so memberships are
// held by sockets of their own, as many as it takes; the receiving socket gets
// what the netdev is a member of.
//
// # Underlay
//
// One goroutine reads the kernel's netlink notifications of links and addresses;
// those that other processes send are dropped. Any that concerns the netdev, and
// any loss of one, makes it list the netdev's state again, at most 20 times a
// second, so what it publishes depends on no history. It takes a list that failed again
// after 50 ms, and asks by a new socket each time, so what other processes send to
// netlink ports delays it at most. A netdev that is gone is
// gone for good, also when one of that name is made again: [WatchNetdevs] reports
// that one, and a new Open takes it. Until Close, Send returns hca.ErrIO and Recv blocks.
//
// # Close
//
// Descriptors are owned by os.File, whose Close first makes blocked calls
// return and then waits until no call uses the descriptor, so none is reused
// under a call's feet. The order is: sockets, memberships, netlink, and last
// the goroutine's end.
package udp
