// Ipoibd is an IPoIB network interface daemon: a TAP interface whose Ethernet
// frames travel as RFC 4391 datagrams over an HCA's UD queue pairs.
//
// This is the map of the code. The doc.go of each package has its theory of operation;
// docs/interface.md shows the path of a frame, qprecovery/README.md says what recovery must do,
// and scripts/imports.md which package may import which.
//
// # Data path
//
//	host IP stack                                             fabric
//	     |                                                       |
//	  ib0 (TAP)                                        RoCEv2 / UDP 4791
//	     |  Ethernet + virtio header                             |
//	+----+----+    ud.Tx: classify, header, post   +-------------+----------+
//	|  link   | ---------------------------------> |  hca.QP (UD)           |
//	|  TAP    | <--------------------------------- |  hca/soft | hca/verbs  |
//	+----+----+    ud.Rx: check, rewrite, write    +-------------+----------+
//	     |               |  ARP, ND, unknown MAC                 | async events
//	     |               v                                       v
//	     |         neigh.Table (pure)                    endpoint (CQ, QP, AH)
//	     |               |  snapshot, actions                    |
//	     +------------- iface: one goroutine owns the state of one interface
//
// # Lanes
//
// An interface has one lane for each queue. The QP, its number and its generation belong to the
// interface, because an IPoIB address contains one QPN, so an error of any lane's CQ rebuilds the
// QP and all CQs:
//
//	TAP queue 0 <-> lane 0: rings, MRs, send and receive CQ, two pumps, freeze detector <-> queue 0 \
//	TAP queue 1 <-> lane 1: the same                                                    <-> queue 1  +- one QP
//	...                                                                                             /
//
// # Recovery
//
// The ladder of an interface (iface) and that of a device (device) are pure state machines with
// shells. Processes that share an HCA agree on its resets by file locks (resetlock):
//
//	pumps, events, freeze detector                     events, list of devices, power, operator
//	         | Fault, Suspected                                  | Fault, Listed, Asked, Command
//	         v                                                   v
//	+-----------------+   Ask (RequestReset)           +----------------------------+
//	| iface           | -----------------------------> | device   DeviceLadder      |
//	| Ladder          | <----------------------------- |     | Step                 |
//	+--------+--------+   View: session, ports, gone   |     v                      |
//	         | worker: open, query, reset, recreate,   | resetlock  <---------------+---> two lock files, which
//	         v rebuild, close                          +---------+------------------+     other processes share
//	                                                             | Open, Reset; Close, when users released it
//	                                                             v
//	  Endpoint (QP, AHs, queues)   ------------------> Session = guard(faults(HCA))
//	                                                             | open, list, reset
//	                                                             v
//	                                             backend.Slot: what is plugged in, faults
//	                                                             | backend.HCA
//	                                                  +----------+----------+
//	                                                  | software | real HCA |
//	                                                  +----------+----------+
//
// # Configuration and hand-over
//
// [config.MakePlan] compares two configurations, and package fleet carries out the plan, at the
// start and at each change. For a hand-over, each owner parks inside a call until the taker owns
// everything: Export puts the state and the descriptors of each part into a capsule
// (link/kernel/capsule), from which Import takes them. The folder testdata/capsule of a package
// has what each version writes.
package main
