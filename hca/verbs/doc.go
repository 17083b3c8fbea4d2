// Package verbs is the backend for real HCAs: what rdma-core drives, through
// libibverbs and the kernel's uverbs, as the contract of package hca.
//
// # The library
//
// libibverbs.so.1 is opened at run time, so that one program starts everywhere
// and says what is missing where the library is not installed. Each function is
// looked up with the version of its symbol, which pins its ABI. Posting, polling
// and arming go through the context's own table, as the inline functions of
// infiniband/verbs.h do. Without cgo, Open fails and all else still builds.
//
// # Who owns what
//
// Everything that libibverbs sees lies outside of the Go heap: registered memory
// is an anonymous mapping, and the requests of a batch are put together in an
// array that the QP allocates when it is created. One call of C posts a batch or
// polls one; nothing is allocated per request. C keeps no Go pointer: objects
// that events name carry a generation in their user context, an integer.
//
// # Life and death of an object
//
// A call enters the objects that it uses; close refuses while there are
// children, lets no more calls in, waits for those under way, and destroys. So a
// verb that hangs holds up the closing of what it uses and, of a queue pair, its
// other Modifys, and nothing else: posting and polling go on. An object of a
// device that was removed closes like any other: the kernel has destroyed its
// side already, and answers EIO. libibverbs keeps its own part of it then, which
// costs memory at each such removal; RDMAV_ALLOW_DISASSOC_DESTROY would free it,
// but forbids to fetch events meanwhile (ibv_open_device.3), so it is taken out
// of the environment.
//
// # Waiting
//
// The descriptors of completion channels and of asynchronous events are waited
// for by Go's network poller; a waiter costs no thread, and its deadline is also
// what wakes it. Events are read and acknowledged in the same call of C: one that
// is read and not acknowledged keeps its object from being destroyed, for ever.
//
// # Where drivers differ from the contract
//
//	RESET -> ERR           | Linux has no such transition: by way of INIT
//	SQD -> RESET           | refused while draining: by way of ERR
//	SQD -> RTS             | likewise: awaited here, 1 s at most
//	masks, current state   | checked here against the table of the contract
//	RESET, destroy         | completions left in the CQ are taken out here
//	posts in RESET         | refused here: librxe would queue them
//	attached twice         | the kernel says yes: refused here
//	multicast on RoCE      | the GID's netdev joins the IP group too
//	GIDs of other network  | left out of the port's table, and no group is joined
//	namespaces             | by them: their netdevs' indices mean others here
//	ENODATA of create_ah   | a GID that left its table, or the netdev is gone:
//	                       | the port is asked which
//
// The meaning of errnos is in errno.go, with their sources.
package verbs
