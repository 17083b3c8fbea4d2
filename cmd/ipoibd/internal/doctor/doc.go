// Package doctor finds what keeps interfaces from working, on this machine and in a running
// daemon, and what to do about it.
//
// [Gather] is the shell: it collects [Facts] from the kernel, from files and from the daemon's
// control socket, within a bounded time, and changes nothing. [Diagnose] is the core: it is pure,
// and compares the facts with a table of rules, ordered by importance. A finding has its
// evidence; what no fact shows is not reported. A finding that another one explains is left out: if
// the underlay is down, silent peers are not reported.
//
// A daemon has already observed much of this. Its notices and its reasons are taken as they are
// (package report), and so are the errors of the packages that would make a start fail (link,
// backend). This package does not judge these conditions again.
//
//	file          | what
//	finding.go    | findings, and the order of the rules
//	facts.go      | the facts
//	start.go      | rules about a start
//	network.go    | rules about netdevs, addresses and firewalls
//	neighbours.go | the kernel's neighbour tables, and their rule
//	running.go    | rules about a running daemon: states and notices
//	traffic.go    | rules about its counters
//	gather.go     | collects the facts
//	probe.go      | single facts of the machine
package doctor
