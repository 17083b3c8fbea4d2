// Package link is the host's side of an IPoIB interface: a persistent TAP, and
// what netlink tells about it.
//
// # Theory of operation
//
// [Open] makes the interface, down and without carrier, or adopts the one that
// an earlier run left; [TAP.Close] leaves it there, without carrier. So its
// addresses, routes and bridge membership survive a restart, and an interface
// that was up is up again as soon as the carrier is. [Delete] takes it away.
//
// An interface is ours when its alias begins with [AliasPrefix]. Two processes
// must never hold one: the kernel would let a second attach to a multi-queue
// TAP succeed and split the traffic between the two. So a process holds the
// lock of the name, an abstract UNIX socket, which ends with the process and
// belongs to the network namespace in which the interface was opened.
//
// # How the TAP is attached
//
// github.com/songgao/water creates and names the device, but knows neither
// IFF_VNET_HDR nor IFF_NO_CARRIER. It creates a persistent device and lets go
// of it; a device without a queue takes its flags from the next attach, which
// golang.org/x/sys/unix does with the flags that are wanted (linux/if_tun.h).
// IFF_NO_CARRIER keeps an adopted interface that is up from flickering. The
// offload mask belongs to the device, not to the descriptor, and outlives both:
// it is set at each start.
//
// # Frames
//
// A frame is [virtio header, 10 bytes, little-endian][Ethernet frame], as
// struct virtio_net_hdr has it (linux/virtio_net.h). No offload is on, so the
// header read is zeros; the one written says what the writer wants.
//
// # Waiting
//
// The descriptor is in Go's netpoller. poll(2) with an eventfd was measured
// beside it on two cores: a frame sent and read took 4 us with the netpoller
// and 38 us with poll(2), locked to its thread or not, since the runtime has to
// hand the processor over; with frames waiting the two did not differ (2-6 us a
// frame, the sender's cost included).
//
// # Watching
//
// A message of netlink is only a hint that something changed: the state is then
// read and published where it differs from the one before. So nothing has to be
// known of the messages but their interface index, and one that was lost
// (ENOBUFS) costs one more reading.
//
// An address is told of only once duplicate address detection has found it
// unique (RFC 4862, section 5.4): nobody is to announce it before.
//
// # Another network namespace
//
// An interface may be given to a container: its queue goes on carrying frames,
// and the queue is asked, too, for the namespace and the name that the interface
// has now (TUNGETDEVNETNS, TUNGETIFF), each time that netlink is asked for more.
// Away from home a netlink socket is opened for each such visit. None stays, as
// a socket or a descriptor of the namespace would keep it alive, with all that is
// in it, after the container has ended.
//
// So the messages come to a socket at home, which hears of every namespace that
// has an ID there (NETLINK_LISTEN_ALL_NSID). An ID keeps nothing alive; each visit
// sees to it that there is one. With its container the kernel deletes the
// interface. It sends no message of that, since the ID goes first; but it does
// send one that the ID is gone (RTM_DELNSID).
//
// The same goes for the lock: it stays at home, and in the container nobody holds
// the name. What protects the interface there is its queue: Open and Delete wait
// for that to be gone, then fail with ErrOwned, of an unknown process.
//
// Close leaves the interface in its container, without carrier. Who opens its
// name in the container adopts it; who opens it at home makes another one, with
// the same MAC. [TAP.Remove] takes the interface away wherever it is.
//
// # Limits
//
// One queue. Open, Delete and Watch work in the network namespace of the
// calling thread. To follow an interface that was moved takes CAP_SYS_ADMIN and
// CAP_NET_BROADCAST; without the first, or where the other namespace belongs to
// somebody else, State.Present is false, and without the second nothing is heard
// from there. TUNGETDEVNETNS came with Linux 5.8. Any process of the namespace
// can take the lock of a name; the error then names it. water leaks its
// descriptor when the kernel refuses to create the device, which ends the start
// of the caller.
package link
