// Package iface is one interface: its TAP, its peers, its data path and its
// recovery.
//
// One goroutine, Run, owns the state. It is level-triggered: whenever the host's side (ib0
// up or down, its MTU), the device's view or the attachment changes, reconcile compares the
// present state with the wanted one and moves one step:
//
//	state      | means                                  | leaves when
//	down       | ib0 is administratively down, no QP    | ib0 up
//	waiting    | ib0 is up, but the device, the port or | the reason is gone; a failed attempt
//	           | the QP is missing, or another process  | is repeated after 1, 2, 4, 8, 16 s
//	           | has attached to ib0                    |
//	up         | QP in RTS, attached to its groups,     | ib0 down, another GID or P_Key,
//	           | carrier on                             | a fault
//	recovering | the QP is suspected or being rebuilt,  | health, or loss of the device
//	           | or reset for another P_Key index       |
//	failed     | Run has ended: ib0 was deleted, or     | never
//	           | moved to a namespace out of reach      |
//	stopped    | Run was stopped; ib0 stays, no carrier | never
//
// # Order
//
// Run handles pending inputs in a fixed order, causes before consequences: the
// state of ib0, results of the workers, faults, pumps that failed, the device's view,
// deadlines, messages of peers that the host uses; last, with equal priority, the inputs that
// may come in floods: address handles, queries, flushed requests, other frames for the slow
// path. So no flood delays the others, and the same inputs lead to the same decisions. The
// inputs before the floods cannot delay them for long: each job has one result, each pump
// fails once, only the latest view and state are kept, a fault of a QP or CQ is followed by
// its recovery, and the rate of the messages that go first is bounded (senders.go).
//
// # Parts
//
// No part knows the interface. Each holds only what it needs, and Run passes results from one to another:
//
//	Run ---+-------------+--------------+-----------+
//	       |             |              |           |
//	      host <-----+ neighbours    recovery    reports
//	       |  carrier|   |           |  |
//	       |         +---|-----------+  fabric --> attachment --> session
//	       |             |              |
//	       +-----------> lanes <--------+
//
//	part       | file                        | has                          | tells Run
//	host       | host.go, mtu.go,            | TAP, carrier, MTU, addresses | results of its worker
//	           | assignment.go               |                              |
//	lanes      | lane.go, pump.go, record.go | rings, CQs, pumps, freeze    | signals: faults, pumps that failed,
//	           |                             | detectors, captures          | the end of a rest
//	fabric     | fabric.go, attachment.go    | sessions, the queue pair     | results of its worker
//	recovery   | recovery.go, reconcile.go,  | the ladder; compares host    | comes, attached, up, detached, tooLong
//	           | freeze.go                   | and device                   |
//	neighbours | neighbours.go, echo.go      | peer table, pings, strays    | answers that no ping waits for
//	reports    | pathreports.go              | narrow paths to heed         | what to ask, what is refuted
//	programs   | programs.go                 | eBPF programs of the TAP     |
//	fast       | fast.go                     | the fast path: its peers and | traffic of peers
//	           |                             | their traffic, holds         |
//
// No verb and no inspection of ib0 runs on Run's goroutine, so that Run always answers, and the
// freeze detectors get their samples, while a device hangs. Halting a pump that hangs in a post or a poll
// delays Run by at most a second. There are two workers, which
// run their jobs one after the other: the worker of fabric calls the verbs and owns the
// endpoint, the worker of host calls netlink. A job returns a function, which Run then calls.
//
// A recovery switches the carrier itself, since that must not wait until it has halted the lanes. After its
// steps, Run does the rest: it fits the MTU, gives the peer table the address of the queue pair, and only
// then lets the recovery start the pumps.
//
// # Up and down
//
// There is one way up. A job opens an endpoint and attaches the lanes to it; then Run starts
// the pumps and raises the carrier. This happens when ib0 goes up, and when the ladder
// requests it because the device is back. There is one way down as well: Run halts the
// pumps, detaches the peer table and queues a job that closes the endpoint. Since the jobs
// run in order, an endpoint that is still being opened is closed as soon as it is open.
//
// # Lanes
//
// A lane belongs to one queue of the queue pair and to one queue of the TAP. The queue pair
// itself, its number and its generation belong to the interface, because an IPoIB address
// contains one QPN: an error of any lane leads to a rung for all. The peer table
// sends through the first lane. There are as many lanes as queues of the TAP; a device that
// supports fewer queues per queue pair is refused.
//
// A pump calls posts and the methods of a CQ directly. If one of them hangs, halting the pump abandons it:
// the device fails and is reset, as after any stuck verb, and when the interface comes up again, a new lane
// replaces the one whose rings the pump owns.
//
// # Network namespaces and other processes
//
// ib0 may be moved to another network namespace, such as a container's. The move sets it
// down and removes its addresses; it is set up again there, under any name.
//
// Every 5 s (each second in a configured network namespace, which may end), and whenever netlink reports a
// change, such as a queue of another process, Run starts an inspection of ib0. If another
// process has changed the MAC, the carrier, the header length, the persistence, the owner,
// the offloads or the link type, the inspection restores it, and Run logs that. Only the
// process that attached a queue can close it. In the meantime the kernel gives that queue some of the
// frames, so the carrier is down and the status says why. A queue that is gone within 100 ms
// belonged to a starting daemon that found ib0 in use. An inspection that fails is logged
// once for each error, and the status shows the error until an inspection succeeds.
//
// # Recovery
//
// The ladder of qprecovery decides what to do about a fault, and Run carries out its
// actions. Faults come from the pumps (a failed work request, an error of a verb), from
// asynchronous events, from the freeze detectors, and from the device's view: a session that
// has ended must be released, a new one used. A detector gets a sample every 50 ms, or every 5 s
// while the link is idle, and has its lane send probes to the queue pair itself. The pumps end
// that rest: they wake Run before they post and after they receive. If a freeze is suspected again, the worker
// proves it on a fresh queue pair.
//
//	fault -> ladder -> hold the host's frames (the transmit pumps stop,
//	                   the TAP's queues absorb them)
//	                -> query, rung ... on the worker, the pumps halted
//	                -> carrier down if it lasts longer than 500 ms
//	                -> health: peers learn the new QPN, frames flow
//
// The actions of one step are carried out together. What they cause in turn, such as a stop
// because the carrier cannot be raised, waits in a queue until they are done. So the ladder is
// always idle after a stop.
//
// When the carrier goes down, the kernel forgets its neighbours, and until it has noticed
// that the carrier is back, it drops its own requests. So the interface sends requests for
// the neighbours that the host waits for, on its behalf.
//
// The layers of an endpoint are rebuilt from the inside out: a queue pair that is reset keeps
// its number, so peers need not learn a new one; address handles and memory survive
// everything except the loss of the device. Frames in flight are counted by how their work
// request ended, or as taken back (tx_drop_reset).
//
// The ladder is idle while the interface goes down or starts again for a reason other than a
// fault: ib0 down, a changed plan of the port, an inactive port.
//
// # The fast path
//
// A software HCA may let the kernel carry small frames past the lanes (hca.FastPath). Whenever the peer table publishes a
// snapshot, the fast path loses the peers that are no longer destinations, before the lanes see it, and gets the new ones
// once no frame can be on its way by an earlier snapshot. Each queue pair has a fast path of its own, to which all peers
// are handed over. Captures, source checks, stations, programs that watch ib0, and a move of ib0 to another network namespace
// hold it. The table learns of the traffic of peers as if it had passed the lanes. The lanes rest meanwhile, and are probed
// at the rate of a link at rest.
//
// # Hand-over and rebuild
//
// Another process may take over the interface. Park makes Run wait inside a call, with the transmit
// pumps halted and nothing posted; the device stops receiving; then Export delivers what has arrived
// and returns the State that the other process needs. Nothing was closed, so Resume continues at once. After
// Leave, Run ends without an effect on ib0. Import makes the interface of the other process: its
// queue pair gets the same number, and its peer table the same peers. The device receives once the
// queue pairs have receives, and the host's frames are read once the handles of the peers are there.
//
// Rebuild gives an interface another configuration. The new one continues from the same State, without the number and
// the ladder of the queue pair, which is closed, and without the peers if it is on another port or in another
// partition.
//
// # Groups of an InfiniBand port
//
// On an InfiniBand port, a membership of the broadcast group comes before the plan of the port. While the
// interface is up, it also joins the groups that the host and the stations behind it want, and leaves them
// afterwards. It learns these from the peer table, which reports each change, and from the kernel's list, which it
// reads each second, since a host need not send reports. Each answer of the subnet administrator leads to another
// plan, and the queue pair is attached to the groups of that. Messages to a group that the port has not joined go
// to the broadcast group. Memberships belong to the port, so a process that hands over an interface does not leave
// its groups.
//
// # MTU
//
// A change of the port's MTU alone costs neither the QP nor the carrier. The MTU of ib0 is
// the largest that the port allows, unless the configuration or the operator asked for a
// smaller one, which is remembered while it does not fit. An adopted ib0 keeps its MTU,
// unless one is configured; if that was the largest, it follows the port.
//
// # Frames
//
// While up, each lane has two goroutines that move frames: from the TAP to the queue pair,
// and back. They look addresses up in the snapshot that the peer table has published, and
// pass frames that they cannot decide about to Run through three bounded queues: for the host's
// frames, for the first messages of each peer that the host uses, and for all other messages.
package iface
