// Package iface is one interface: its TAP, its peers, its data path and its
// recovery.
//
// One goroutine, Run, owns the state. It is level-triggered: whenever the host's
// side (ib0 up or down, its MTU), the device's view or the attachment changes,
// reconcile compares what is with what should be and moves one step:
//
//	state      | means                                  | leaves when
//	down       | ib0 is administratively down, no QP    | ib0 up
//	waiting    | ib0 is up, but the device, the port or | the reason is gone; a failed try is
//	           | the QP is not there, or another process| repeated after 1, 2, 4, 8, 16 s
//	           | has attached to ib0                    |
//	up         | QP in RTS, broadcast group joined,     | ib0 down, another GID, P_Key or group,
//	           | carrier on                             | a fault
//	recovering | the QP is in doubt, or being made anew | health, or the device's loss
//	failed     | Run has ended: ib0 was deleted, or     | never
//	           | moved where it may not be followed     |
//	stopped    | Run was ended; ib0 stays, no carrier   | never
//
// What lies waiting at one moment is taken in a fixed order, causes before their
// consequences: what became of ib0, results of operations, faults, pumps that
// ended, the device's view, deadlines; last, and side by side, what may come in
// floods: address handles, queries, flushed requests, frames for the slow path.
// So no flood keeps anything waiting, and the same inputs lead to the same
// decisions. What comes before the floods cannot keep them waiting for long: each
// operation has one result, each pump ends once, of views and states only the
// latest is there, and a fault of a QP or CQ is followed by its recovery.
//
// ib0 may be moved to another network namespace, a container's. The move sets it
// down, without addresses; there it is set up again, under whatever name.
//
// # Other processes
//
// Each second, and whenever netlink reports a change, Run inspects ib0. If another
// process has changed the MAC, the carrier, the header length, the persistence, the
// owner, the offloads or the link type, Run restores and logs that. Only the process that attached a
// queue can close it. Meanwhile the kernel gives that queue some of the frames, so the
// carrier is down and the status says why. A queue that is gone within 100 ms belonged
// to a starting daemon that gave way. An inspection that fails is logged once for each
// error, and the status shows the error until an inspection succeeds.
//
// # Recovery
//
// The ladder of qprecovery decides what to do about a fault, and Run carries out its
// actions. Faults come from the pumps (a failed work request, an error of a verb),
// from asynchronous events, from the freeze detector, and from the device's view: a
// session that is over must be released, a new one used. The detector gets a sample
// every 50 ms and has the queue pair send probes to itself; if it suspects a freeze
// again, the worker proves it on a fresh queue pair. Verbs run on the worker, one
// operation after the other, so that Run always answers. During an operation the
// endpoint belongs to the worker.
//
//	fault -> ladder -> hold the host's frames (the transmit pump stops,
//	                   the TAP's queue takes them)
//	                -> query, rung ... on the worker, the pumps halted
//	                -> carrier down if it lasts longer than 500 ms
//	                -> health: peers are told of a new QPN, frames flow
//
// The kernel forgets its neighbours with the carrier, and what it asks with until
// it has noticed that the carrier is back is lost. So those whom it waits for then
// are asked for in its name.
//
// The layers of an endpoint are made anew from the inside: a queue pair that was
// reset keeps its number, so no peer has to learn anything; address handles and
// memory survive everything but the loss of the device. Frames in flight are
// counted by how their work request ended, or as taken back (tx_drop_reset).
//
// The ladder is idle while the interface is taken down or made anew for a reason
// that is no fault: ib0 down, another plan of the port, an inactive port.
//
// # MTU
//
// A change of the port's MTU alone costs neither the QP nor the carrier. The MTU
// of ib0 is the largest that the port allows, unless the configuration or the
// operator asked for a smaller one; that is kept over a time in which it did not
// fit. An adopted ib0 keeps the MTU that it was left with, unless one is
// configured; one that was left with the largest follows the port.
//
// # Frames
//
// While up, two goroutines pump frames: "tx" from the TAP to the queue pair, and
// "rx" back. They look addresses up in the snapshot that the peer table
// published, and hand what they cannot decide to Run by two bounded queues.
package iface
