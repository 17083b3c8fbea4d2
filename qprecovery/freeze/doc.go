// Package freeze decides whether an HCA has frozen: whether it stopped, or works
// wrongly, without reporting a fatal event (R8). It is pure: [Detector.Step] is
// given a [Sample] of what the data path does, every [Config.Interval], and gives
// a [Decision].
//
// # What is a freeze
//
//	reason               | what is seen
//	send_timeout         | a send is outstanding beyond SendLimit; others completed since its post
//	completions_stopped  | sends are outstanding, none completes, nor do Probes of them
//	                     | that were asked for, one after the other
//	deaf_receive         | sends complete, nothing is received, and Probes of them
//	                     | stayed without answer
//
// A probe is a message that the queue pair sends to itself. It is asked for when
// nothing was received for Quiet, or nothing completed for Quiet while sends are
// outstanding. So an idle link is proven well by its probes, and a busy one
// needs none.
//
// # What is none
//
// While the port is not active, or recovery runs, no send and no receive is
// judged, and their times begin anew afterwards. When the samples themselves
// come more than MaxGap apart, the daemon was stopped or throttled: all times
// begin anew, and it is told to poll first, so that what the device did
// meanwhile is seen before it is judged.
//
// # How long it takes
//
// With samples at most Interval apart, a freeze is found within [Config.Bound]:
//
//	the largest of  SendLimit + Interval                           750 ms
//	                Quiet + Interval + Probes*(ProbeLimit + Interval)  900 ms
//
// by default, below 1 s. Counted from when the fault shows, which is the post of
// the first send that it swallows or the last thing received. A stall of the
// daemon, and the port's way back, count from their end.
//
// # Limits
//
// A daemon throttled for so long that every gap is a stall judges nothing. A
// send that is swallowed while all others are as well is completions_stopped. A
// verb that does not return is noticed where it was called (hca/guard).
package freeze
