// Package diagnose judges what is known about a machine and its daemon. It is pure: facts go in,
// findings come out, and the caller passes in the time.
//
// # Findings
//
// [Diagnose] compares [Facts] with a table of rules, ordered by importance. A row of the table has the
// name of a finding, its severity, the things to which the rule applies, a predicate, and its texts: what
// is wrong, the evidence, and what to do. A finding has its evidence; what no fact shows is not reported.
// A finding that another one explains is left out: if the underlay is down, silent peers are not reported.
//
// Package doctor gathers the facts, and prints the findings.
//
// # Readiness
//
// [NotReady] and [Hung] judge the interfaces of a status. The probes, the metrics, 'ipoibd status --check',
// the CNI plugin and a rule of [Diagnose] all ask them.
//
// # Notices
//
// The daemon itself judges what only it can observe, by tables of the same kind: [Watch] derives the
// notices of a device from its counters and sockets, and [Link.Notices] those of an interface. The status
// shows them, a metric counts them, and a rule of [Diagnose] takes each as evidence, without judging the
// condition again.
package diagnose
