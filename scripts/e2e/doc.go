// Package e2e holds the tests of the whole system: daemons as real processes,
// with real TAPs, and a separate network namespace for each host.
//
// TestMain builds the daemon once. Every test enters its own namespaces
// (package nstest) and creates hosts there; a [host] is a namespace on a small
// Ethernet segment with one daemon. A test observes a daemon only from outside:
// by `ipoibd status --json`, the kernel's view of ib0, and what other hosts can
// reach. The types of the status are therefore defined here again, from the
// documentation, so that a change of the JSON breaks a test.
//
// TestFaults injects every kind of fault into one of two hosts under traffic and
// prints a table of the outcomes; `make faults` does so ten times. Its
// independent observers are a ping every millisecond from the other host
// ([probe]), a TCP connection of iperf3 ([stream]) and an `ip monitor`
// ([monitor]); the daemon's own figures are compared with theirs. [faultKinds]
// has the faults.
//
// TestR10HandOverStorm hands a daemon over again and again, in trouble, while one of the two processes is
// killed or stopped: for ten minutes in `make soak`.
//
// A [relay] between two hosts drops, duplicates, reorders and damages datagrams, and records
// which; the daemons' counters must agree with it. In TestOffloads it impairs nothing and only
// observes the underlay.
//
// If a test fails, it shows the daemons' logs. Time limits are about ten times
// the values measured on an idle machine; the figures are logged.
package e2e
