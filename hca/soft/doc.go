// Package soft is the software HCA: an [hca.Device] that implements RoCEv2 over a
// [transport.Transport]. The pure engine of the queue pairs is package softqp; this
// package adds its locks, its goroutines and its tables.
//
// # Behaviour
//
// A device has one port. Its GIDs are the underlay's addresses, and its state is the
// underlay's. Its node, system image and port GUIDs are the EUI-64 of the MAC that the
// underlay had on opening, as in the Linux Soft-RoCE driver. A GID keeps its
// index as long as its address exists; the next new GID gets a free index.
//
//	underlay              | what the device does
//	up, down              | PORT_ACTIVE, PORT_ERR; sends on a port that is down
//	                      | complete with success and are dropped ("tx_drop_port_down")
//	addresses change      | GID_CHANGE
//	MTU changes, or the   | PORT_ACTIVE again: real HCAs have no event for it, and
//	MTU of a path does    | the user queries the port again after PORT_ACTIVE
//	netdev gone           | DEVICE_FATAL, once; posts and verbs that allocate or
//	                      | change fail with ErrIO, those that release succeed
//
// MaxPayload of a GID is the underlay's MTU less the headers. So a GID of an IPv4
// address on an underlay with MTU 1500 carries 1448 bytes, and the port declares the
// next larger standard MTU, 2048. With StandardMTU both are the largest standard MTU
// that fits, which hardware needs.
//
// If the transport knows its paths ([transport.Paths]), the Path of a GID is the narrowest one to
// a destination of an address handle or of Config.Peers. The device does not enforce it: longer
// messages are sent, and may be lost. A user that sees one arrive refutes the reports about that path
// ([hca.PathRefuter]). paths.go has the rules, pathwatch.go asks.
//
// # Large sends, trains and large receives
//
// A large send ([hca.LSO]) is cut into messages, which are passed to the transport as one
// train if its limits permit. Messages of equal size to one destination within a batch form
// trains as well. If the transport lowers its limits, the remaining datagrams are built
// again within the new limits, because the ICRC of a datagram covers its place in the train.
// The device fills in checksums on send.
//
// Segments of one flow that arrive with one call of the transport are joined in one receive
// if the QP requests that ([hca.QPSpec].LRO); see package join. The device verifies the
// checksums of these messages, and of no others. Counters count messages, not receives.
//
// # Lanes and queues
//
// A device may have several transports on one underlay ([Config.More]). Each has a lane, which
// receives and sends independently of the others. A QP may have several queues, each of which
// is a QP of the engine with the same number. Queue i sends through lane i and gets the messages
// that arrive there. So a lane serves one queue of each QP, and its goroutines contend with
// other lanes only when a QP changes its state. All multicast arrives at the first lane.
//
// All queues of a QP have the same state. An error of one queue reaches the others before the
// verb that caused it returns, or before the next one begins.
//
// # The fast path
//
// A transport may let the kernel carry small messages of a QP between a TAP and the wire
// ([transport.FastPaths]), past the queues and this package. The fast path has a gate, which is open
// only while the QP is in RTS. The gate is shut before a verb changes that state, and as soon as an error
// has changed it. It stays shut while the port is down or lacks the QP's address or P_Key, and while the
// device is paused. fastpath.go has the conditions.
// Messages of one flow stay in order: a queue reports the flow of each message once it was sent, or once the
// owner of its completion has handled it.
//
// # Goroutines and locks
//
// A device has permanent goroutines that watch the underlay and its paths, and one for each lane: the
// drain, which resumes the send queues that found the transport full. Close ends them.
// A timer ends memberships of groups that have lingered. Everything else runs in the caller's
// goroutine. A post builds its datagrams and sends them. A Wait for receive completions receives
// datagrams and delivers their messages, so a message reaches its owner without a switch between
// goroutines. One goroutine receives at a time in each lane. If several wait, the others wake when
// their messages arrive, and one of them receives next. If none has waited for 200 ms, the
// stand-in, another goroutine of the lane, receives until one does, so that messages are always
// delivered, or dropped and counted.
//
// Locks are taken in this order, and never two of one kind at once, except by verbs that change
// a QP as a whole: they lock all its queues, in the order of the queues.
//
//	Device.mu     tables and life times; never on the data path
//	queue.sendMu  the engine's send side
//	queue.recvMu  the engine's receive side; of any QP, since a send to this
//	              port itself is delivered by its sender
//	CQ.mu         the ring
//
// lane.tx.mu (a transport has one sender at a time) is taken inside sendMu.
// Handling an error requires other sides and queues of the QP, whose locks may come before the
// one that is held. So the error sets Device.failing, and the goroutine that caused it settles
// the QP once it holds no lock. The data path reads QPs, groups, GIDs, P_Keys and
// memory from snapshots ([softqp.Env] and routes) that the slow path replaces.
// A snapshot of memory is only used under the QP's lock, so closing an MR waits
// for its last use by taking each lock once.
//
// # Back pressure
//
// A send that finds the transport full waits until the transport has room. If the transport
// has had none for 5 ms, the waiting sends that it does not accept are dropped, as UD
// permits: they are counted ("tx_drop_no_room") and complete with success. So a send waits
// longer only if the transport has room from time to time, however many sends wait.
// WireBlocked counts how often the transport was full, so that the delay is not mistaken for
// a fault of the device.
//
// A message for a QP without a posted receive waits while later messages stay in the
// transport's buffer. If the owner of the QP's CQ is the one that receives, the message waits
// until that owner has taken its completions and posted receives. For any other owner it waits
// at most 5 ms. Then it is dropped ("rx_drop_no_recv"), and messages do not wait for that
// QP again until its owner posts. The waits for one QP are limited to 25 ms in a burst and to
// a twentieth of the time on average, so that a slow owner does not delay the other QPs. If
// there are no others, each message waits up to 2 s. Messages of this port to itself
// do not wait.
//
// # Forged and damaged datagrams
//
// A datagram from the wire whose source is an address of this port is forged and
// dropped ("rx_own_source"): messages of this port to itself never reach the wire.
//
// The ICRC covers the IPv4 identification, which a UDP socket does not report. So the receiver
// derives it from the ICRC.
// If a source has sent only identifications of 0 to 63, as this program does, a datagram that
// matches only with another identification counts as damaged.
//
// # Multicast
//
// Without Peers a group is an IP multicast group of the underlay, joined for as
// long as a QP is attached to it, and for some seconds longer, so that a recovery can
// attach another QP without the kernel. With Peers a copy goes to each peer's unicast
// address, with the multicast QPN, and every QP that is attached to any group receives
// it; hardware drops such packets. A device's own multicast is looped back to its
// attached QPs, including the sender unless that blocks it ([hca.QPSpec].BlockLoopback), as in
// hardware.
package soft
