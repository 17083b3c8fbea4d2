// Package coalesce joins received TCP segments and UDP datagrams of one flow into large
// frames for a TAP, as the kernel's GRO does for a network device. The host's IP stack then
// runs once for up to 64 KB. The package is pure.
//
// # Theory of operation
//
// [Coalescer.Join] takes the frames of one batch and returns frames for vectored writes: the
// first frame of a run, with its headers changed in place, followed by the payloads of the
// others. It copies no payload, allocates nothing, and keeps nothing for the next batch: it
// never delays a frame to wait for the next one. A frame that cannot be joined is returned
// unchanged.
//
// A large frame requests segmentation in its virtio header, although it is on its way to the
// host: the host's TCP accepts it whole, and a host that forwards it segments it again. The
// result is bit for bit the frames that were joined, except for the two exceptions of package
// join, which has the rules. In addition, the frames of a run have the same sender and equal
// Ethernet headers, and the destination is not a group. UDP is joined only if the kernel
// accepts segmentation of UDP at a TAP (Linux 6.2).
//
// # Order
//
// Frames of one flow stay in order. A frame of a flow that cannot be joined ends the run of
// its flow: an acknowledgement without data, for example. An IP packet whose ports are
// unknown, such as a fragment, ends the runs between its addresses to which it may belong.
// Frames of different flows may pass each other.
//
// # Checksums
//
// A checksum is verified at most once, and only when a second frame fits the first: the host
// verifies the checksums of frames that are not joined. If the device has verified a checksum, the
// frame's virtio header has DataValid, and Join does not verify it again. The checksum field
// of a large frame contains the checksum of its pseudo-header, and its virtio header has NeedsCsum:
// the host does not verify the checksum (CHECKSUM_PARTIAL), and completes it if it forwards
// the frame. DataValid would not suffice: segmentation requires NeedsCsum
// (virtio_net_hdr_to_skb), and a TAP ignores DataValid.
package coalesce
