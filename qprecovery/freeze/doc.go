// Package freeze decides whether a queue pair seems frozen: whether the HCA has
// stopped or malfunctions without reporting a fatal event (R8). It is pure:
// [Detector.Step] takes a [Sample] of the data path every [Interval] and
// returns a [Decision].
//
// # The rule
//
// A probe is a message that the queue pair sends to itself. The detector requests one
// when nothing was received for Quiet, or when sends wait or are refused and none has
// completed for Quiet. So probes show that an idle link works, and a busy link needs
// none. A probe is answered once its send has completed and anything was received since
// the first probe of the series. If Probes consecutive probes are not answered, a freeze
// is suspected.
//
// A probe counts as unanswered if it makes no progress for ProbeLimit. A send queue
// completes in order, so until the probe's own send completes, each completion of an
// earlier send restarts that time; after that it runs once. A long queue on a slow link
// therefore never causes a suspicion. A probe that cannot be posted also counts as
// unanswered, which reveals a send queue that accepts nothing although nothing is
// outstanding.
//
// The counts come from the pumps, which may wait for a processor while the device works. So
// when half of ProbeLimit has passed, the detector requests polls, and judges the probe only
// after both pumps have completed a round that began later. If that takes longer than
// ProbeLimit, the probe's time starts over. A pump that completes no such round for RoundLimit
// makes the detector suspect a freeze as well: it may hang in a post or a poll. The rung that follows
// halts it, which shows whether it does.
//
// A queue pair whose port is a limited member of its partition does not receive what it sends to itself: the P_Keys
// of two limited members do not match (IBA 10.9.3), and the HCA may report each such packet to the subnet manager as a
// violation. So the detector requests a probe only when sends wait, and the probe is answered once its send has completed.
//
// A suspicion proves nothing about the device. The ladder (qprecovery) rebuilds the
// CQs, and if the suspicion returns, probes on a fresh QP and CQ decide.
//
// # Lost events
//
// If an interrupt or an event queue of the device is dead, completions arrive, but their events do not.
// Then probes are answered only once the detector has requested polls, and packets wait as long as
// that: up to about half a second. If only polls find receives three times in a row, and no event in between,
// the detector suspects that events are lost. It disregards a time in which a sample was late since the probe
// was requested, or in which the pumps did not run at once when asked: they may have got the event, and
// waited for a processor.
//
// # Rest
//
// After RestAfter probes in a row that were answered at once, while nothing else was sent or received, the
// link is idle. Then samples, and with them probes, come only every Rest, so that an idle daemon costs
// nothing. The caller takes a sample at once when a work request is posted or completes ([Detector.Resting]),
// which ends the rest. A lane whose sibling is busy does not rest ([Detector.NextDeadline]).
//
// # Exceptions
//
// The detector does not judge the queue pair while the port is not active, while
// recovery runs, or if the device's wire was full since the last sample
// ([hca.WireReporter]); all times start over then. They also start over if two samples
// are more than MaxGap apart (Rest more at rest), because the daemon was stopped or throttled. In that case
// the detector first requests a poll, to see what the device has done in the meantime.
//
// # Detection time
//
// With samples at most Interval apart while it does not rest, a freeze is suspected within
//
//	Quiet + Interval + Probes*(ProbeLimit + 2*Interval)  900 ms
//
// and a pump that hangs in a post or a poll within RoundLimit more. The time starts when
// the first send that does not complete is posted, or at the last receive. At rest nothing is received,
// so it starts when the next send is posted, or with the next probe: a fault of an idle link
// is suspected within Rest more: 5.9 s. After a stall of
// the daemon, a full wire or a port that was down, it starts when that has ended.
//
// # Limits
//
// A freeze is not detected if the daemon is throttled so much that every gap is a
// stall, or that each round of a pump takes longer than ProbeLimit, or if the wire is
// always full. The software HCA cannot distinguish a full neighbour table of the
// underlay from a full queue (both fail with ENOBUFS), so one
// send in that time that the table refuses hides a freeze. The loss of a single send's
// completion is not a freeze: the completion of the next send, perhaps of a probe,
// accounts for it. A verb that does not return is detected where it was called
// (hca/guard).
//
// If the port is a limited member of the partition, neither the detector nor the proof notices that nothing is received.
//
// A probe does not reach the wire: the HCA delivers a message to its own queue pair internally. So neither
// the detector nor the proof notices a device that works except for its port, which sends or receives nothing
// although it is ACTIVE.
package freeze
