// Package bpf holds the eBPF programs of the daemon. Each is optional: without it, the daemon
// does the same work itself, or does without. The package loads programs, reads their counts,
// and returns descriptors as plain integers; it imports nothing of ours.
//
// # Programs
//
// [Filter] runs for each frame that the host sends by a TAP (TUNSETFILTEREBPF), before the
// frame wakes the daemon. It drops what IPoIB cannot carry: frames that are neither IPv4, IPv6,
// ARP nor RARP, by the same rule as package ud, which checks again. A host with a bridge or
// lldpd sends some of them every few seconds. It counts frames by [Kind], and those that pass
// by their length and by the segments that they become, which shows whether the host hands
// over large frames. It also stamps the first frame for a reader that waits ([Filter.Waits],
// [Filter.Woke]), which yields the distribution of the delay from the host's transmission to
// the read: mostly the wake-up. It does that only while the reader waits, by one word of
// memory that both map, so neither makes a system call.
//
// [Steering] selects the queue of a TAP for a frame (TUNSETSTEERINGEBPF). A flow keeps its
// queue, so its frames stay in order, and successive ones become a train. A flow is the
// addresses, the protocol and the ports; fragments, and IPv6 packets with extension headers,
// only have addresses. The kernel's own choice would follow the queue by which frames of the
// other direction were written.
//
// [LoadReuseport] loads the program that selects the socket of an SO_REUSEPORT group for each
// RoCEv2 datagram, by the first bits of its destination QPN (SO_ATTACH_REUSEPORT_EBPF).
//
// [IPID] copies the IPv4 identification of received RoCEv2 datagrams to their marks, which
// SO_RCVMARK delivers. The ICRC covers the identification, which a UDP socket does not see.
//
// # Lifetime
//
// A TAP, a socket and a netdev keep the program that is attached to them, together with
// its maps, after its descriptors are closed. A TAP outlives its daemon, and with it
// the two programs: the next daemon must replace or remove them before it reads, and the last
// one must remove them at the end. Package link does both. The link of tcx ends with its
// descriptor, and so with the process. On kernels without tcx (before Linux 6.6), the filter
// of [IPID] remains if the daemon is killed, and the next one replaces it.
//
// # Traps
//
// A datagram that the program of a group drops (SK_DROP) is answered by an ICMP port
// unreachable message: for the kernel there is no socket. UDP_GRO joins datagrams of one pair
// of addresses and ports whatever their QPN, and the program sees only the first of a
// train, so the sockets of a group have it off. The kernel does not ask the program for datagrams
// to groups of IP, unless the group of sockets has only one (early demux).
//
// The identification in the mark is that of a single datagram, or of the first one of a
// train. Nothing exact is known about the others: before Linux 6.10 the kernel joins datagrams
// of any identifications, and since then those with the same or with consecutive ones.
//
// A mark can match rules of others, such as routes (ip rule) and firewalls: the upper half of
// the marks made here can have any value. The program leaves packets alone that have a
// mark, and a mark that is set later replaces its own.
//
// # Counts
//
// A program counts in one element of a per-CPU array, without atomic operations.
// A [Histogram] has a bucket for each power of two.
//
// # Building
//
// `make generate` compiles the C files with clang, for both byte orders, and generates the Go
// files that embed them (bpf2go). The results are committed, so building the daemon requires
// no clang; a test compares them. The programs use only structures of the kernel's user
// interface, so they need no type information (BTF) of the running kernel. They load on
// Linux 5.8 and later; tests run them here and in guests with Linux 6.1 and 6.12.
package bpf
