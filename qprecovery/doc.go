// Package qprecovery decides what to rebuild after a failure. It is pure: time
// and events go in, actions come out ([Ladder.Step], [DeviceLadder.Step]).
//
// # Classes
//
// Every completion status, every asynchronous event and every pair of a verb and
// an error has exactly one [Class] ([OfCompletion], [OfEvent], [OfError]). The
// errors are the ones of the hca contract, to which a backend maps errnos. A class
// determines the scope of the error, if there is one: ENOMEM from a post is a
// full queue, and ETIMEDOUT from create_ah a silent peer. A completion status never has a
// larger scope than its QP.
//
// # Rungs
//
//	rung            | what is rebuilt               | entered because of
//	resume_qp       | nothing: SQE -> RTS           | a suspicion and a QP in SQE
//	reset_qp        | the QP's queues               | a suspicion and a QP in ERR or unusable
//	recreate_qp     | the QP, with a new number     | escalation
//	rebuild_cq      | the CQs with their QP         | CQ error, a suspected freeze
//	reset_device    | everything, also the context  | a fatal event, EIO or ENODEV, a verb that
//	                |                               | hangs, a proven freeze, a failure at the
//	                |                               | CQ rung, an opening that fails because of
//	                |                               | the device or hangs
//	wait_for_device | the same, once it is back     | removal, a failed reset
//	give_up         | the same, on a command        | ten minutes of waiting
//
// The operator may request reset_qp, rebuild_cq and reset_device.
//
// A suspicion is a failed work request, an error event of the QP, or a flush on a QP that
// nothing moved to ERR. The QP is queried first. If it is in RTS, it works; if that
// happens more often than its budget allows, it leads to reset_qp. The first four rungs
// belong to the interface ([Ladder]), the others to the device ([DeviceLadder]), which
// all its interfaces share. The shell passes events between them: a [RequestReset] of an
// interface becomes [Asked], and [DeviceDown], [DeviceUp] and [DeviceGaveUp] report the
// state of the device, which is closed once every interface has emitted [Ready].
//
// # The device
//
// [DeviceState] says what each state may do, and the table in devicetable.go which states
// follow. While a device is being closed, events only change facts. Once it is closed, a
// single verdict selects the next state, by these facts: whether the device is wanted,
// whether it is in the list, whether a pause is due, and whether this process may still hold
// the hardware. The last one has three values: held (the device must be reset before it is
// opened), free, or fresh (it was reset, or has returned as another instance, since it was
// open).
//
// The facts belong to the parts of the ladder: session (what is open, and what may still be
// held), listing (the list of devices), coordination (the reset under way), resetBudget (the
// failures and the pause that is due) and suspension.
//
// The processes that use a device agree about its resets (package reset). The ladder calls
// its part in that agreement ([Resets]): it requests a reset, learns that one is pending (its own
// or that of another process), reports that this process has nothing open, and learns the outcome.
// [ResetAction] is what is left to do for the shell: to reset the device, and to log. After a
// reset the list of devices is read, because the reset of hardware removes the instance and
// adds another one. That is part of the reset, as are all changes of the list within two
// seconds after it. If a reset finds no device, the device was removed.
//
// A device may be suspended, even before it was ever open. [Answer] reports the result of a
// [Command].
//
// # Freezes
//
// A freeze is suspected if the probes that a QP sends to itself are not answered
// (qprecovery/freeze). Then this QP and its CQs are rebuilt. If the suspicion returns
// within a minute of health, the ladder requests a proof ([Prove]): three probes
// through a fresh QP and CQ without other traffic. If none is answered, although the
// port is active and the wire is not full, the device is reset (freeze_persists).
// Otherwise the ladder stays at the CQ rung, with its budget and its pauses. It also
// stays there if the proof fails for another reason than the device, such as a lack of
// memory.
//
// The device is also monitored as a whole, whether or not an interface uses it: while
// it is healthy, the shell queries its ports two seconds after the previous query has
// returned ([Check]), and at once after an event of a port. The answer is believed, whatever
// the events said (R24): an event may be lost. A query that failed is repeated after 0.1, 0.2,
// ... 2 s.
//
// # Escalation
//
// A rung whose verb fails or times out leads to the next one; a stuck verb leads to the
// device rung at once (R8). A rung that succeeds more often than its budget allows within
// its window also leads to the next one, but no further than the CQ rung: there the pauses
// before a rebuild double from 1 s to 1 min. So nothing that a peer sends resets the
// device. A device that fails too often pauses in the same way, from 10 s to 5 min: each
// failure counts, also a failed opening, regardless of the outcome of its reset. Resets that
// the operator or another process requests do not count. Windows are measured on a clock that
// runs only in health.
//
//	found in RTS  5 in 10 s
//	resume_qp     5 in 10 s
//	reset_qp      3 in 10 s
//	recreate_qp   3 in 1 min
//	rebuild_cq    3 in 1 min
//	reset_device  3 in 10 min
//
// A larger error during an operation is kept until the operation has ended,
// because there are never two operations at once on one scope. An equal or
// smaller one is absorbed, unless it is about an object that the operation
// creates: then it is handled afterwards. A time limit that is processed more
// than 100 ms late is extended once, because the daemon itself was stopped and
// the result may already be queued.
//
// A suspended device stays closed until it is resumed, and no wait runs in the
// meantime. Like the operator's commands, a suspension does not count as a use.
//
// Another process can take over a ladder that has no operation under way ([Ladder.HandOver],
// [DeviceLadder.HandOver]): budgets, pauses, waits and the current record go on. The
// other process opens the device itself, so an open device begins there as at a first start.
//
// # Generations
//
// Each rung that rebuilds objects gives them a new generation ([Run.Gen]), and an
// event carries the generation of its object. The QP, the CQ and the device have
// different ages: a CQ error is still valid after the QP was replaced. An event
// that is older than its object, or that answers an earlier operation, is counted
// as stale.
//
// # Traffic
//
// Frames are held from the first suspicion until health. The carrier goes down
// after [CarrierBound], or at once on giving up.
//
// # Reports
//
// [Entered] reports each rung that a recovery enters, and [Ended] its end with the whole
// record, so that a shell need not compare histories.
//
// # Limits
//
// History and records are bounded ([MaxRecords], [MaxSteps]). A record of a query
// that found no error is not kept, unless a work request failed. Ports are not
// modelled: without a usable port the shell stops the ladder ([Stopped]).
package qprecovery
