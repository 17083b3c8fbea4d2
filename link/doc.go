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
// An interface is ours when its alias begins with [AliasPrefix].
//
// # Who holds it
//
// Two processes must never hold one interface: the kernel lets a second one attach
// to a multi-queue TAP and splits the traffic between the two. The queues
// themselves are the lock. A process attaches only if there is no queue, and then
// counts the queues (IFLA_TUN_NUM_QUEUES, IFLA_TUN_NUM_DISABLED_QUEUES). If it finds
// more than its own, it detaches before it has changed anything. It tries again for a
// second, after random pauses. Of several processes the one that attaches last sees the
// others, so no two succeed. The lock ends with the process, holds in any namespace to
// which the interface is moved, and needs no file.
//
// A file in /run/ipoibd/holders contains the PID of the holder. Its name is made of the
// namespace's inode and the interface's index there, and the holder keeps it locked
// (flock(2)). The file only adds the PID to [OwnedError]; if it cannot be written, or
// if another user could have written it, the PID is unknown.
//
// # Ownership
//
// [Open] makes the effective user and group of the process the owner and the group
// of the interface, also when it adopts one. They remain when the process ends. Any
// user who may open /dev/net/tun, which is every user on most systems, can attach to an
// interface without an owner and a group. With them, the kernel lets a process attach
// only if it has CAP_NET_ADMIN in the user namespace of the interface's network
// namespace, or both this user and this group (tun_not_capable, drivers/net/tun.c).
//
// A new device has no owner for a moment, in which any user may attach and stay. So
// Open creates it under a random name that begins with "ipoibd-", and deletes it if it
// then has another queue, owner or link type. Open gives the device its real name only
// when everything else is set up; netlink reports both names. After that Open makes the
// device persistent. If the process is killed before, the kernel deletes the device.
//
// A process with CAP_NET_ADMIN can attach a queue, and change the properties of the
// device, within a millisecond. [TAP.Inspect] counts the foreign queues. It restores
// and reports the MAC, the carrier, the header length, the persistence, the owner, the
// offloads and, while the interface is down, the link type. The MAC is the one that the
// interface had when it was opened. The kernel does not report the filters (classic,
// eBPF and by address), the eBPF program that chooses a queue, the size of the send
// buffer and the byte order, so each inspection sets them again, without a report.
//
// # How the TAP is attached
//
// github.com/songgao/water creates and names the device, but knows neither
// IFF_VNET_HDR nor IFF_NO_CARRIER. So Open closes water's queue once the device is
// persistent. A device without a queue takes its flags from the next attach
// (linux/if_tun.h), which Open does through golang.org/x/sys/unix with the right flags.
// IFF_NO_CARRIER keeps the carrier of an adopted interface that is up from flickering.
// The offload mask belongs to the device, not to the descriptor, so it outlives the
// process; Open and each inspection set it.
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
// Only the kernel's messages count. The sockets are connected to the kernel, so it
// refuses messages that other processes send to their ports. A message to a group shows
// the port ID of its sender, which is 0 only for the kernel. Watch reads the state at
// the first message, and then leaves the socket alone for 50 ms. So there are at most 20
// readings a second, however many messages come. After a reading that takes long, the
// pause is 19 times as long as the reading, up to a second. Of each family only the
// first 256 addresses are listed.
//
// An address is listed only once duplicate address detection has found it unique
// (RFC 4862, section 5.4): it must not be announced before.
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
// The queue is the lock there as well: Open and Delete in the container fail with
// ErrOwned. They cannot find the PID, since the file is named after the namespace in
// which the interface was opened. In that namespace the name is free.
//
// Close leaves the interface in its container, without carrier. A process that opens
// the name in the container adopts it; one that opens the name at home makes another
// interface, with the same MAC. [TAP.Remove] removes the interface wherever it is.
//
// During this search the interface can be moved or renamed again, and another can take
// its name. So once an interface is found, the queue is asked again. The interface must
// be a TAP with a queue, and have the MAC that the queue reports (SIOCGIFHWADDR);
// otherwise the search begins again.
//
// # Limits
//
// One queue. Open, Delete and Watch work in the network namespace of the
// calling thread. To follow an interface that was moved takes CAP_SYS_ADMIN and
// CAP_NET_BROADCAST; without the first, or where the other namespace belongs to
// another user, State.Present is false; without the second no events arrive from
// there. TUNGETDEVNETNS came with Linux 5.8. A privileged process that attaches again
// and again prevents a daemon from starting. water leaks its descriptor when the kernel
// refuses to create the device; the caller's start fails then.
package link
