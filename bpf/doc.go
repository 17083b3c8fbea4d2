// Package bpf contains the daemon's eBPF programs. They are optional: without them, the daemon
// does the same work itself, or the kernel does. The package loads programs, reads their
// counts, and returns descriptors as plain integers. It imports no other package of this module.
//
// # Programs
//
// [Filter] runs for each frame that the host sends through a TAP (TUNSETFILTEREBPF), before
// the frame wakes the daemon. It drops what IPoIB cannot carry: all frames except IPv4, IPv6,
// ARP and RARP. Package ud applies the same rule again. A host with a bridge or lldpd sends
// such frames every few seconds. The filter counts frames by [Kind], and passed ones also by
// length and by number of segments, which shows whether the host sends large frames. It also
// timestamps the first frame for a waiting reader ([Filter.Waits], [Filter.Woke]), which
// yields the distribution of the delay from the host's transmission to the read: mostly
// wake-up latency. The timestamp is one word of memory that the reader maps, so the reader
// makes no system call for it, and the filter takes it only while the reader waits.
//
// The program of [Programs.Steering] selects the queue of a TAP for a frame (TUNSETSTEERINGEBPF). A flow keeps its
// queue, so its frames stay in order and can form trains. A flow is identified by its
// addresses, protocol and ports; fragments, and IPv6 packets with extension headers, only by
// their addresses. The kernel would otherwise select the queue through which the daemon wrote
// the frames of the opposite direction.
//
// # The fast path
//
// A frame that goes through the daemon wakes a process on each host. [FastPath] carries small unicast frames between a TAP
// and the underlay of a software HCA in the kernel, as the packets that the HCA sends itself, byte for byte. The
// program for the egress of the TAP builds the headers and the ICRC, and leaves the MAC of the next hop to the kernel
// (bpf_redirect_neigh). The program for the ingress of the underlay makes all checks that the HCA makes, and passes the
// frame to the host. What they do not carry goes to the daemon unchanged, except for what is lost:
//
//	verdict   | from the host                               | from the underlay
//	carried   | TCP, UDP, ICMP echo; unicast, no options, no fragments, no DHCP; at most 504 bytes (MAX_PACKET)
//	closed    | the gate is closed
//	length    | too short, too long, or to be cut           | too short, too long, or several packets that the kernel has joined
//	kind      | anything else, such as ARP, neighbour discovery, DHCP, multicast, a VLAN tag
//	stranger  | from a MAC that is not the TAP's; to no peer, one without a route, or whose next hop is not resolved | not from a peer
//	order     | an earlier one may still be on its way through the daemon
//	header    |                                             | another P_Key, Q_Key, destination, opcode ...
//	damaged   |                                             | a wrong checksum or ICRC
//	lost      | the kernel had no memory for it; this one is dropped
//
// [Gate.Open] and [Gate.Shut] open and close the gate of a queue pair. Shut, [Gate.RemovePeer] and [Gate.Close] return once no
// program runs that may have seen the state before. For this, programs count when they begin and end on a CPU: an odd
// count means that one runs.
//
// Frames of a flow stay in order. The programs count, by flow, the frames that they leave to the daemon; the daemon counts those
// that it has sent or delivered ([Gate.Sent], [Gate.Received]). A flow takes the fast path only while both counts are equal.
// A frame that is dropped in between, such as in the queue of a TAP, would hold its flow back forever, so the daemon also
// reports empty lanes ([Gate.SentAll], [Gate.ReceivedAll]): a frame still missing after several reports was lost. [Flow]
// hashes flows; a fragment holds back all flows between its addresses. The counts are of packets: a large frame counts once for
// each segment, because the kernel may cut it before it reaches the TAP.
//
// Out of scope is reordering in other queues: those of the underlay; the backlog of a processor, in which a carried
// packet waits until the poll that received it ends, while the daemon may deliver a later one; and a queueing
// discipline of the TAP that delays frames for longer than a lost one is waited for.
//
// Packets on the fast path bypass the firewall rules for local packets of the underlay, and its IPsec policies, in both
// directions.
//
// All netdevs of a FastPath are in one network namespace, because programs know them by their index.
//
// # Privileges
//
// Loading programs requires capabilities with which a process can read all memory of the machine. Using
// loaded programs requires none of them, and only the fast path still needs bpf(2). So [Load] returns only
// descriptors. A process can pass them to the program that it executes after it has dropped its privileges,
// where [Open] returns [Programs]. It cannot load more later. So each TAP has a filter of its own, a program
// of seven instructions, and Load loads as many of them as the caller asks for. They continue, by a tail
// call, in the program that does the work.
//
// # Lifetime
//
// An attached program and its maps stay alive after their descriptors are closed, because the TAP
// holds a reference. But the map by which a filter finds the program that does the work becomes empty
// when no process has it open. Then the filter passes every frame. A TAP outlives its daemon, and so do its two
// programs. The next daemon must replace or remove them before it reads, and a daemon that
// exits must remove its own. Package link does both. The programs of the fast path also stop working when their process ends.
//
// # Counts
//
// The filters keep their counts in a mapped array with an element for each CPU of each filter, which
// they change without atomic operations. The kernel cannot map a per-CPU array. A [Histogram] has a
// bucket for each power of two.
//
// # Building
//
// `make generate` compiles the C files with clang, for little-endian machines (the daemon builds for
// amd64 and arm64 only), and generates the Go files that embed them (bpf2go). The results are
// committed, so building the daemon does not require clang; a test checks that they are up to date.
// The programs use only structures of the kernel's user-space API, so they do not need the type
// information (BTF) of the running kernel. They load on Linux 5.8 and later, the fast path on 6.1 and
// later unless the kernel is a real-time one. Tests run them on the host's kernel, and in guests with Linux 6.1 and 6.12.
package bpf
