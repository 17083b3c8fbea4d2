// Package record copies what passes through the data path, for packet captures, and builds
// from a copy the packets that a capture shows.
//
// # Theory of operation
//
// A [Recorder] has one producer, a pump or the slow path, and one consumer, the capture. It is
// a ring of fixed size between them. The producer never waits: if the ring is full, it counts
// the packet as lost and drops the copy. The ring consists of two arrays, one of descriptions
// ([Record]) and one of bytes, and two counters, one written by each end. So there is neither a
// lock nor an allocation per packet.
//
// There are two kinds of record. A frame is an Ethernet frame as the TAP sees it: possibly
// large, with the checksums that the host left to the device. A message is a send that the
// queue pair accepted, or a receive that completed successfully, before any check of its
// contents. With a message, the recorder keeps what the work request or the completion says,
// and the address of the queue pair at that time.
//
// # Levels
//
// A [Builder] builds the packets of a [Level] from a record:
//
//	level       | record  | link type      | packet
//	Ethernet    | frame   | EN10MB (1)     | the frame
//	IPoIB       | message | IPOIB (242)    | GRH, IPoIB header, packet
//	RoCE        | message | RAW (101)      | IP, UDP, BTH, DETH, message, padding, ICRC
//	InfiniBand  | message | ERF (197)      | ERF header, LRH, GRH, BTH, DETH, message, padding, ICRC, VCRC
//
// A large send or receive becomes one packet for each of its messages, cut by package segment,
// as on the wire. It is copied whole; cutting is the consumer's work.
//
// Neither libibverbs nor a network tap shows the headers that an HCA adds, so they are built
// here, for all backends in the same way. Their fields come from the address handle and the
// queue pair (sends), or from the GRH area and the completion (receives). What neither contains
// is zero: the UDP source port, the PSN, the IPv4 identification of a send, the virtual lane, the VCRC
// and, over IPv4, the UDP checksum. Lengths and ICRC fit the packet that is shown. Every level exists for
// every port: on Ethernet, the LIDs of the InfiniBand level are zero; on InfiniBand, the RoCE
// level has the GIDs as IPv6 addresses.
//
// # Trust
//
// Messages are hostile input. The builder reads only bytes that were received, and writes the
// lengths itself.
package record
