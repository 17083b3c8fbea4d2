// Package verbs is the backend for the kernel's RDMA devices. It implements the contract
// of package hca with libibverbs (rdma-core) and the kernel's uverbs.
//
// # The library
//
// libibverbs.so.1 is loaded at run time, so that one binary starts on every host and
// reports what is missing if the library is not installed. Each function is looked up
// with the version of its symbol, which pins its ABI. Posting, polling and arming use the
// function table of the context, like the inline functions of infiniband/verbs.h. Without
// cgo, Open fails and everything else still builds.
//
// # Ownership of memory
//
// All memory that libibverbs accesses lies outside the Go heap: registered memory is an
// anonymous mapping, and the requests of a batch are written to arrays that the QP
// allocates when it is created. One C call posts or polls a batch; nothing is allocated
// per request. C stores no Go pointer: the user context of an object to which events
// refer is a generation, an integer.
//
// # Lifetime of an object
//
// A call enters the objects that it uses. Close fails while the object has children.
// Otherwise it admits no more calls, waits for the current ones, and destroys the object.
// A verb that hangs therefore delays only the closing of the objects that it uses, and the
// other Modify calls of its queue pair; posting and polling continue. An object of a removed
// device closes like any other: the kernel has already destroyed its part and returns
// EIO. libibverbs then keeps its own part, which costs memory at each such removal.
// RDMAV_ALLOW_DISASSOC_DESTROY would free it, but does not allow fetching events at the
// same time (ibv_open_device.3), so this package removes it from the environment.
//
// # Waiting
//
// Go's network poller waits for the descriptors of completion channels and of
// asynchronous events. A waiter needs no thread; setting its deadline wakes it. Events are
// read and acknowledged in one C call, because an event that is read and not acknowledged
// blocks the destruction of its object forever.
//
// # Large sends and checksums
//
// This package cuts large sends itself, with package segment, whatever the device supports.
// A large send becomes one work request per segment. The list of such a request refers to the
// headers, in registered memory of the queue pair (segment.MaxHeader bytes for each entry of
// the send queue), and to the segment's part of the caller's payload, which is not copied. The
// segmenter reads the payload once, for the checksums. The memory stays registered when the queue
// pair is destroyed, for the next one of its domain.
//
// The segments count against the depth of the send queue, so a CQ with an entry for each
// entry of the queue cannot overrun. The last segment is always signaled. The queue pair
// numbers its requests (wr_id), and a book (book.go) turns their completions into one per
// send. Checksums of single messages ([hca.SendIPCsum]) are filled in likewise, in a copy of
// the headers; for IPv4 the device does that if it can (IBV_DEVICE_UD_IP_CSUM).
//
// Not implemented: on a device that declares large sends of UD (ibv_query_device_ex, tso_caps
// with IBV_QPT_UD in supported_qpts), one IBV_WR_TSO could replace the requests.
//
// # Where drivers differ from the contract
//
//	RESET -> ERR           | Linux has no such transition: done through INIT
//	SQD -> RESET           | refused while draining: done through ERR
//	SQD -> RTS             | refused while draining: Modify waits, at most 1 s
//	masks, current state   | checked here against the table of the contract
//	RESET, destroy         | completions left in the CQ are removed here
//	posts in RESET         | refused here: librxe would queue them
//	attached twice         | allowed by the kernel: refused here
//	multicast on RoCE      | the GID's netdev also joins the IP group
//	GIDs of other network  | removed from the port's table, and not used to join
//	namespaces             | groups: their netdev indices are meaningless here
//	ENODATA, ENODEV of     | the GID has left its table or lost its netdev, or the
//	create_ah              | device is gone: a query of the port decides
//
// The meaning of errnos is in errno.go, with the sources.
package verbs
