// Package iface is one interface: its TAP, its peers and its data path.
//
// One goroutine, Run, owns the state. It is level-triggered: whenever the host's
// side (ib0 up or down, its MTU), the device's view or the attachment changes,
// reconcile compares what is with what should be and moves one step:
//
//	state    | means                                  | leaves when
//	down     | ib0 is administratively down, no QP    | ib0 up
//	waiting  | ib0 is up, but the device, the port or | the reason is gone; a failed open is
//	         | the QP is not there; no carrier        | tried again after 1, 2, 4, 8, 16 s
//	up       | QP in RTS, broadcast group joined,     | ib0 down, another plan for the port,
//	         | carrier on                             | the session's end, an error of a pump
//
// While up, two goroutines pump frames: "tx" from the TAP to the queue pair, and
// "rx" back. They look addresses up in the snapshot that the peer table
// published, and hand what they cannot decide to Run by two bounded queues.
package iface
