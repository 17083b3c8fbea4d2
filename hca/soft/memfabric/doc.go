// Package memfabric is an in-memory network for [transport.Transport]: a test
// double of UDP sockets on netdevs that runs inside testing/synctest.
//
// # Theory of operation
//
// A [Fabric] is one broadcast domain. [Fabric.Attach] plugs in a named netdev, which has a
// link state, an MTU and addresses. It returns the netdev's [Port], a transport.Transport;
// [Fabric.AttachLanes] returns several, between which the netdev divides its datagrams. Send
// cuts trains and copies each datagram to every netdev that has the destination address, or has
// joined the group, except the sender's. There is no goroutine and no timer in between: a queue
// is sorted by the time at which a datagram is due, and Recv itself waits until the first one is
// due. So nothing keeps running after Close, and delays use synctest's virtual clock.
//
// # Impairments
//
// [Conditions] cause loss, duplication, reordering, delay and jitter in the whole fabric.
// Each directed pair of netdevs draws from its own random sequence, derived from the
// fabric's seed and the two names, once per packet. So a run is repeatable if each sender
// sends the same packets in the same sequence, however the senders interleave. Partitions
// cut named pairs. The methods of a [Port] change its netdev as an administrator would:
// [Port.SetUp], [Port.SetMTU], [Port.AddAddr], [Port.DelAddr], [Port.Remove].
//
// # Limits
//
// A receive queue holds [DefaultQueue] datagrams by default; like a socket buffer it drops
// further ones, counted as [DropOverflow]. Send accepts all packets unless
// [Port.SetWritable] prevents it. A datagram to a port's own address is not delivered, as
// with sockets bound to a netdev.
//
// # Memory
//
// Datagrams come from a free list of the fabric: once it is as long as the number of
// datagrams in flight or lent, Send and Recv do not allocate. A capture hook costs a copy
// per datagram.
package memfabric
