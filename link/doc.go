// Package link is the host's side of an IPoIB interface: a persistent TAP and its state as
// reported by netlink.
//
// # Theory of operation
//
// [Open] creates the interface, down and without carrier, or adopts the one that an earlier
// run left. [TAP.Close] leaves the interface without carrier. Its addresses, routes and
// bridge membership therefore survive a restart, and an interface that was up works again
// as soon as it has carrier. [Delete] removes it.
//
// An interface belongs to ipoibd if its alias begins with [AliasPrefix].
//
// # Who holds it
//
// Two processes must never hold the same interface: the kernel lets a second one attach
// to a multi-queue TAP and splits the traffic between the two. The queues
// themselves are the lock. A process attaches only if there is no queue, and then
// counts the queues (IFLA_TUN_NUM_QUEUES, IFLA_TUN_NUM_DISABLED_QUEUES). If it finds
// more than its own, it detaches before it has changed anything, and retries for a second,
// after random pauses. Otherwise it attaches its further queues ([Spec].Queues). Of several
// processes the one that attaches last sees the others, so no two succeed. The lock is released when
// the process exits, is valid in any namespace to which the interface is moved, and needs no file.
//
// The alias of an interface contains the PID of its holder, and the PID namespace to which the PID
// belongs. [OwnedError] reports this PID, even in a sandbox, which hides the descriptors of other
// processes. The PID is a hint: a process with CAP_NET_ADMIN can change the alias, and after a process
// was killed, another one may get its PID. It is unknown if it belongs to another PID namespace, if no
// such process exists, or if the host has chosen another alias, which then stays. Close restores the
// alias to [AliasPrefix].
//
// # Ownership
//
// [Open] makes the effective user and group of the process the owner and the group
// of the interface, also when it adopts one. They remain when the process exits. Any
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
// process; Open and Close clear it, and each inspection sets it again. The same holds for
// the eBPF programs of [TAP.SetPrograms]: the device keeps them when its last queue is closed.
//
// # Frames
//
// A frame is [virtio header, 10 bytes, little-endian][Ethernet frame]. The header is a
// struct virtio_net_hdr (linux/virtio_net.h). While no offload is on, the header of a frame
// from the host is zero. The writer chooses the header of a written frame, whatever the
// offloads are: a large frame that requests segmentation reaches the host's TCP as a whole.
//
// With offloads ([TAP.SetOffloads]) the host leaves checksums and segmentation to the reader,
// and a frame can be up to [MaxFrame] bytes long. The header of such a frame is untrusted: a
// process with a packet socket (packet(7), PACKET_VNET_HDR) chooses its fields, within the
// checks of virtio_net_hdr_to_skb. When a frame enters the queue, the kernel stops charging its
// memory to the sender. The queue can therefore hold much memory that is charged to no socket,
// so it is shorter while segmentation is on.
//
// # Waiting
//
// The descriptor is in Go's netpoller. Measured on two cores, a frame sent and read took
// 4 us with the netpoller, and 38 us with poll(2) and an eventfd, whether or not the
// goroutine was locked to its thread, because the runtime has to hand over the processor.
// With queued frames there was no difference (2-6 us per frame, including the cost of the
// sender).
//
// # Watching
//
// A netlink message is only a hint that something has changed. Watch then reads the state,
// and publishes it if it differs from the previous one. It uses only the interface index
// of a message, and a lost message (ENOBUFS) costs only one more reading.
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
// # Multicast groups
//
// [TAP.Groups] reads the lists of the IP groups that the host has joined on the interface and on its bridge. They are files
// of /proc; the kernel does not report changes, so the caller has to read them again.
//
// # Another network namespace
//
// An interface can be moved to a container. Its queue continues to carry frames. Before
// each netlink request, the queue also reports the current namespace and name of the
// interface (TUNGETDEVNETNS, TUNGETIFF). If that is not the namespace in which the
// interface was opened (home), a netlink socket is opened for the request and closed
// afterwards, because a socket or a descriptor would keep the namespace and its contents
// alive after the container has exited.
//
// Messages arrive at a socket at home, which receives the messages of every namespace that has an
// ID there (NETLINK_LISTEN_ALL_NSID). An ID does not keep a namespace alive; each visit
// makes sure that there is one. When the container exits, the kernel deletes the interface.
// It sends no message about that, because it removes the ID first, but it reports the
// removal of the ID (RTM_DELNSID).
//
// The queue is the lock there as well: Open and Delete in the container fail with
// ErrOwned. In the namespace in which the interface was opened, its name is free.
//
// Close leaves the interface in its container, without carrier. A process that opens
// the name in the container adopts it; one that opens the name at home creates another
// interface, with the same MAC. [TAP.Remove] removes the interface wherever it is.
//
// During this search the interface can be moved or renamed again, and another can take
// its name. So once an interface is found, the queue is queried again. The interface must
// be a TAP with a queue, and have the MAC that the queue reports (SIOCGIFHWADDR);
// otherwise the search starts again.
//
// # Lent to a network namespace
//
// With [Spec].Netns, Open itself runs on a thread in another namespace, which then is the home of the
// interface, and the thread returns. The interface can be adopted there again, which is impossible for one
// that was moved: a queue attaches only to devices of the namespace in which its file was opened. On the
// other hand, that file keeps the namespace alive, and with it the interface, when the container has
// exited. Whoever lends says that the container has exited by removing the path of the namespace, as
// container runtimes do. So each inspection looks whether the path still leads home, and otherwise
// deletes the interface, as the kernel would have. The other queues and sockets end when the owner closes
// the interface that is gone.
//
// # Limits
//
// Open, Delete and Watch work in the network namespace of the calling thread. Following an
// interface that was moved requires CAP_SYS_ADMIN and CAP_NET_BROADCAST. Without the first, or
// if the other namespace belongs to another user, State.Present is false; without the second no
// events arrive from there. TUNGETDEVNETNS requires Linux 5.8. A privileged process that
// attaches again and again can prevent a daemon from starting. water leaks its descriptor if
// the kernel refuses to create the device; the caller's start then fails.
package link
