// Package freeze decides whether a queue pair seems to have frozen: whether the
// HCA stopped, or works wrongly, without reporting a fatal event (R8). It is pure:
// [Detector.Step] takes a [Sample] of the data path every [Config.Interval] and
// returns a [Decision].
//
// # The rule
//
// A probe is a message that the queue pair sends to itself. The detector asks for
// one when nothing was received for Quiet, or when sends wait or are refused and none
// has completed for Quiet. So an idle link shows by its probes that it works, and a busy
// one needs none. A probe is answered once its send has completed and anything was
// received since the first probe of the series. If Probes in a row stay unanswered, a
// freeze is suspected.
//
// A probe is unanswered if nothing shows its progress for ProbeLimit. A send queue
// completes in order, so until the probe's own send completes, each completion of an
// earlier send starts that time over; after that the time runs once. So a long queue on
// a slow link raises no suspicion, however long it takes. A probe that cannot be posted
// counts as unanswered too: that reveals a send queue that takes nothing although
// nothing is outstanding.
//
// A suspicion proves nothing about the device. The ladder (qprecovery) rebuilds the
// CQs, and if the suspicion returns, probes on a fresh QP and CQ decide.
//
// # What is not judged
//
// Nothing is judged while the port is not active, while recovery runs, or if the
// device's wire was full since the last sample ([hca.WireReporter]); all times start
// over then. They also start over if two samples are more than MaxGap apart, because
// the daemon was stopped or throttled. Then the detector asks for a poll first, so that
// it sees what the device did meanwhile before it judges the device.
//
// # How long it takes
//
// With samples at most Interval apart, a freeze is suspected within [Config.Bound]:
//
//	Quiet + Interval + Probes*(ProbeLimit + 2*Interval)  900 ms
//
// by default. The time counts from the post of the first send that does not complete,
// or from the last receive. After a stall of the daemon, a full wire or a port that was
// down it counts from the end of that.
//
// # Limits
//
// A daemon that is throttled so much that every gap is a stall judges nothing, and
// neither does one whose wire is always full. The software HCA cannot tell a full
// neighbour table of the underlay from a full queue (both fail with ENOBUFS), so a send
// that the table refuses, once in each Bound, hides a freeze. If only the completion of
// one send is lost, that is no freeze: the completion of the next send, perhaps of a
// probe, accounts for it. A verb that does not return is noticed where it was called
// (hca/guard).
package freeze
