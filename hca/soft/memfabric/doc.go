// Package memfabric is an in-memory network for [transport.Transport]: a test
// double of UDP sockets on netdevs that runs inside testing/synctest.
//
// # Theory of operation
//
// A [Fabric] is one broadcast domain. [Fabric.Attach] plugs in a named [Port],
// which is a transport.Transport with an underlay of its own: link state, MTU,
// addresses. Send copies each packet into the receive queue of every port that
// its destination names: those that have the address, or joined the group, the
// sender excepted. There is no goroutine and no timer between the two: a queue
// is ordered by the time at which a datagram is due, and Recv itself waits
// until the first one is. So nothing is left running after Close, and delay
// runs on synctest's virtual clock.
//
// # Impairments
//
// [Conditions] give loss, duplication, reordering, delay and jitter, for the
// whole fabric. Each directed pair of ports draws from its own random sequence,
// made from the fabric's seed and the two names, in the order of its packets:
// a run is repeatable as long as each sender's order is, however the senders
// interleave. Partitions cut named pairs. [Port] methods change an underlay as
// an administrator would: [Port.SetUp], [Port.SetMTU], [Port.AddAddr],
// [Port.DelAddr], [Port.Remove].
//
// # Limits
//
// A receive queue holds [DefaultQueue] datagrams unless told otherwise; more
// are dropped as [DropOverflow], as a socket buffer does. Send is never short
// unless [Port.SetWritable] says so. A datagram to a port's own address goes
// nowhere, as with sockets bound to a netdev.
//
// # Memory
//
// Datagrams come from a free list of the fabric: once it has grown to what is
// in flight or lent, Send and Recv do not allocate. A capture hook costs a copy per
// datagram.
package memfabric
