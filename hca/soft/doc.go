// Package soft is the software HCA: an [hca.Device] that speaks RoCEv2 over a
// [transport.Transport]. The queue pairs' engine is package softqp, pure; here are
// its locks, its goroutines and its tables.
//
// # What it is to the outside
//
// One port. Its GIDs are the underlay's addresses, its state the underlay's;
// its node, system image and port GUID are the EUI-64 of the underlay's MAC as
// it was on opening, as the Linux Soft-RoCE driver has it. A GID keeps its
// index while its address lives; the index of one that went is given to the
// next new one.
//
//	underlay              | what the device does
//	up, down              | PORT_ACTIVE, PORT_ERR; sends on a port that is down
//	                      | complete with success and are dropped ("tx_drop_port_down")
//	addresses change      | GID_CHANGE
//	MTU changes           | PORT_ACTIVE again: real HCAs have no event for it, and
//	                      | whoever hears PORT_ACTIVE queries the port again
//	netdev gone           | DEVICE_FATAL, once; posts and verbs that allocate or
//	                      | change fail with ErrIO, those that release succeed
//
// MaxPayload of a GID is what the underlay's MTU leaves, so a GID of an IPv4
// address on an underlay of 1500 carries 1448 bytes and the port declares the
// next MTU of the standard, 2048. With StandardMTU both are the largest standard
// MTU that fits, as hardware needs it.
//
// # Goroutines and locks
//
// A device has three goroutines, all ended by Close: the receive loop, the
// watcher of the underlay, and the drain, which resumes the send queues that
// found the transport full. Everything else happens in the caller's: a
// post builds its datagrams and sends them.
//
// Locks are taken in this order, and several of one kind never at once:
//
//	Device.mu     tables and life times; never on the data path
//	QP.sendMu     the engine's send side
//	QP.recvMu     the engine's receive side; of any QP, since a send to this
//	              port itself is delivered by its sender
//	CQ.mu         the ring
//
// Device.tx.mu (the transport has one sender at a time) is taken inside sendMu.
// A receive error would need the send side of its own QP, which comes earlier in
// the order: so it sets Device.failing, and whoever caused it settles the QP
// when it holds no lock. The data path reads QPs, groups, GIDs, P_Keys and
// memory from snapshots ([softqp.Env] and routes) that the slow path replaces.
// A snapshot of memory is only used under the QP's lock, so closing an MR waits
// for its last use by taking each lock once.
//
// # Back pressure
//
// A send that finds the transport full waits until the transport makes room. When the
// transport has made none for 5 ms, the waiting sends that it does not take are
// dropped, as UD may do: they are counted ("tx_drop_no_room") and complete with success. So no
// send waits longer, however many there are, unless the transport makes room now and
// then. WireBlocked counts how often the transport was full, so that the delay is not
// taken for a fault of the device.
//
// A message for a QP without a posted receive waits 5 ms at most for one, and later
// messages wait behind it, in the transport's buffer. Then it is dropped ("rx_drop_no_recv"),
// and that QP is not waited for again until its owner posts. All waits for one QP take
// 25 ms in a burst and a twentieth of the time on average, so that a slow owner does not
// hold up the other QPs. Messages of this port to itself do not wait.
//
// # Forged and damaged datagrams
//
// A datagram from the wire whose source is an address of this port is forged and
// dropped ("rx_own_source"): messages of this port to itself never reach the wire.
//
// The ICRC covers the IPv4 identification, which a socket does not show, so the
// receiver finds it by the ICRC. If a source has sent only identifications of 0 to 63,
// as this program does, a datagram that matches only with another identification counts
// as damaged.
//
// # Multicast
//
// Without Peers a group is an IP multicast group of the underlay, joined for as
// long as a QP is attached to it. With Peers a copy goes to each peer's unicast
// address, with the multicast QPN, and a QP attached to any group receives what
// so arrives; hardware drops such packets. Own multicast comes back to the QPs
// attached here, the sender included, as hardware does it.
package soft
