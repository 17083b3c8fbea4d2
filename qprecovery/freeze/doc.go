// Package freeze decides whether a queue pair seems to have frozen: whether the
// HCA stopped, or works wrongly, without reporting a fatal event (R8). It is pure:
// [Detector.Step] takes a [Sample] of the data path every [Config.Interval] and
// returns a [Decision].
//
// # The rule
//
// A probe is a message that the queue pair sends to itself. The detector asks for
// one when nothing was received for Quiet, or when sends wait or are refused and none
// completed for Quiet. So an idle link shows by its probes that it works, and a busy one
// needs none. A probe is answered when its send has completed and something was
// received since the first probe of the series; where Probes in a row stay
// unanswered, a freeze is suspected.
//
// A probe stays unanswered when its way shows no life for ProbeLimit: until its own
// send completes, each completion of a send before it starts that time over, since
// a send queue completes in order and the probe waits for its turn; from then on the
// time runs once. So the delay of a long queue on a slow link proves nothing, however
// long it is. A probe that cannot be posted at all is unanswered, too: that is how a
// send queue is noticed that takes nothing and has nothing outstanding.
//
// A suspicion proves nothing about the device. The ladder (qprecovery) rebuilds the
// CQs, and if the suspicion returns, probes on a fresh QP and CQ decide.
//
// # What is not judged
//
// While the port is not active, while recovery runs, and whenever the device's wire
// took no packets since the last sample ([hca.WireReporter]), nothing is judged, and
// all times start over. The same holds when the samples themselves come more than
// MaxGap apart: then the daemon was stopped or throttled, and the detector asks for a
// poll first, so that what the device did meanwhile is seen before it is judged.
//
// # How long it takes
//
// With samples at most Interval apart, a freeze is suspected within [Config.Bound]:
//
//	Quiet + Interval + Probes*(ProbeLimit + 2*Interval)  900 ms
//
// by default, below 1 s. It counts from the post of the first send that does not
// complete, or from the last thing received. After a stall of the daemon, a full
// wire, or the port's return it counts from their end.
//
// # Limits
//
// A daemon throttled for so long that every gap is a stall judges nothing, nor does
// one whose wire is full for ever. The software HCA cannot tell a full neighbour
// table of the underlay from a full queue (ENOBUFS is the error of both), so a send
// that the table refuses, once in each Bound, hides a freeze. A send whose completion alone is lost is no
// freeze: the completion of the next one, if need be of a probe, accounts for it. A
// verb that does not return is noticed where it was called (hca/guard).
package freeze
