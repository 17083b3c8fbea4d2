// Package qprecovery decides what is rebuilt when something broke. It is pure:
// time is passed in, events go in, actions come out ([Ladder.Step],
// [DeviceLadder.Step]).
//
// # Classes
//
// Every completion status, every asynchronous event and every pair of a verb and
// an errno has exactly one [Class] ([OfCompletion], [OfEvent], [OfErrno]); the
// errors of the hca contract stand for errnos ([OfError]). A class names the
// scope that it is about, or none: ENOMEM of a post is a full queue, ETIMEDOUT of
// create_ah a silent peer. No completion status accuses more than its QP.
//
// # Rungs
//
//	rung            | what is made anew             | a scope enters it by
//	resume_qp       | nothing: SQE -> RTS           | a suspicion, QP found in SQE
//	reset_qp        | the QP's queues               | a suspicion, QP found in ERR or lost
//	recreate_qp     | the QP, with a new number     | escalation
//	rebuild_cq      | the CQs with their QP         | CQ error, a suspected freeze
//	reset_device    | everything, the context too   | a fatal event, EIO or ENODEV, a verb that
//	                |                               | hangs, a proven freeze, a failure at the
//	                |                               | CQ rung
//	wait_for_device | the same, once it is back     | removal, a reset that fails
//	give_up         | the same, by the operator     | ten minutes of waiting
//
// The operator may order reset_qp, rebuild_cq and reset_device.
//
// A suspicion is a failed work request, an error event of the QP, or a flush on a
// QP that was not moved. The QP is queried first. Found in RTS it serves, and that is
// counted; more often than its budget it leads to reset_qp. The first four rungs are
// the interface's ([Ladder]), the others the device's ([DeviceLadder]), one for all
// interfaces of a device. The shell carries what passes between them: a [RequestReset]
// of an interface becomes [Asked], and [DeviceDown], [DeviceUp] and [DeviceGaveUp] report
// what became of the device, which is closed when every interface has said [Ready].
//
// # The device
//
// [DeviceState] says what each state may do, and the table in devicetable.go where it
// leads. While a device is closed, facts change by events, and one verdict at the end says
// where to go: whether it is wanted, whether it is in the list, whether a pause is due, and
// whether this process may still hold the hardware. That is one value of three: held (it
// has to be reset before it is opened), free, or fresh (it was reset, or came as another
// instance, since it was open).
//
// A reset is coordinated: [RequestReset] asks for one, [ResetPending] announces it, [Released]
// answers that nothing of this process is open, [ResetEnded] tells the outcome. After a
// reset the list of devices is read, since the reset of hardware removes the instance and
// brings another one; that belongs to the reset, and so does what the list shows within
// two seconds after it. A reset that finds no device means that it was removed.
//
// A device may be suspended, also before it was open once. [Entered] and [Ended] report
// rungs and ends of recoveries as they happen, [Answer] what became of a [Command].
//
// # Freezes
//
// A freeze is suspected when the probes that a QP sends to itself stay unanswered
// (qprecovery/freeze). So this QP and its CQs seem to be dead, and they are rebuilt. If
// the suspicion returns within a minute of health, the ladder asks for a proof
// ([Prove]): three probes through a fresh QP and CQ that carry nothing else. If none is
// answered, although the port is active and the wire not full, the device is reset
// (freeze_persists). Otherwise the ladder stays at the CQ rung, with its budget and its
// pauses. It also stays there if the proof fails for a reason that does not accuse the
// device, such as a lack of memory.
//
// A device is also watched as a whole, whether or not an interface uses it. While it is
// healthy, the shell calls a cheap verb two seconds after the answer to the last one
// ([Check]).
//
// # Escalation
//
// A rung whose verb fails or does not end in time leads to the next one; a verb
// that was given up as stuck leads to the device at once (R8). A rung
// that succeeds more often than its budget allows within its window leads to the
// next one as well, but no further than the CQ rung: there the pauses before a
// rebuild double from 1 s to 1 min. So nothing that a peer sends resets the
// device. A device that fails too often pauses in the same way, 10 s to 5 min: each failure
// of a device that was open counts, whatever became of its reset.
// Windows are measured on a clock that runs in health only.
//
//	found in RTS  5 in 10 s
//	resume_qp     5 in 10 s
//	reset_qp      3 in 10 s
//	recreate_qp   3 in 1 min
//	rebuild_cq    3 in 1 min
//	reset_device  3 in 10 min
//
// A larger error during an operation is kept until that has ended, since there
// are never two at once on one scope; an equal or smaller one is absorbed, unless
// it is about what is just being made: then it is looked at afterwards. A limit
// that is looked at more than 100 ms late is extended once: the daemon itself
// was stopped, and the answer may lie waiting.
//
// A device that is suspended is closed, whatever happens, until it is resumed; no
// wait runs meanwhile. Like the operator's orders, that is not counted as a use.
//
// # Generations
//
// Each rung that makes something anew gives it a generation ([Run.Gen]), and an
// event names that of its object. A QP, a CQ and the device are of different
// ages: a CQ error is still true of the CQ while the QP is replaced. What is older
// than its object, or answers an earlier operation, is counted as stale.
//
// # Traffic
//
// Frames are held from the first suspicion until health. After
// [DefaultCarrierBound] the carrier goes down, at a give-up at once.
//
// # Limits
//
// History and records are bounded ([MaxRecords], [MaxSteps]). A record of a query
// that found nothing is not kept, unless a work request is to blame. Nothing is
// known of ports: without one the shell stops the ladder ([Stopped]).
package qprecovery
