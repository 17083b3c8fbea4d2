// Package iface is one interface: its TAP, its peers and its data path.
//
// One goroutine, Run, owns the state. It is level-triggered: whenever the host's
// side (ib0 up or down, its MTU), the device's view or the attachment changes,
// reconcile compares what is with what should be and moves one step:
//
//	state    | means                                  | leaves when
//	down     | ib0 is administratively down, no QP    | ib0 up
//	waiting  | ib0 is up, but the device, the port or | the reason is gone; a failed QP is
//	         | the QP is not there; no carrier        | tried again after 1, 2, 4, 8, 16 s
//	up       | QP in RTS, broadcast group joined,     | ib0 down, another GID, P_Key or group,
//	         | carrier on                             | the session's end, a failure of the QP
//	failed   | Run has ended: ib0 was deleted, or     | never
//	         | moved where it may not be followed     |
//	stopped  | Run was ended; ib0 stays, no carrier   | never
//
// ib0 may be moved to another network namespace, a container's. The move sets it
// down, without addresses; there it is set up again, under whatever name.
//
// A QP has failed when a pump met an error of its own, or when a work request
// failed and the QP is not in RTS any more. Pauses are counted for one session
// and plan, and forgotten after 16 s of success: whatever changes, ib0 down and
// up included, starts with a try at once.
//
// A change of the port's MTU alone costs neither the QP nor the carrier. The MTU
// of ib0 is the largest that the port allows, unless the configuration or the
// operator asked for a smaller one; that is kept over a time in which it did not
// fit. An adopted ib0 keeps the MTU that it was left with, unless one is
// configured; one that was left with the largest follows the port.
//
// While up, two goroutines pump frames: "tx" from the TAP to the queue pair, and
// "rx" back. They look addresses up in the snapshot that the peer table
// published, and hand what they cannot decide to Run by two bounded queues.
package iface
