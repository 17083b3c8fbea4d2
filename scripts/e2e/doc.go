// Package e2e holds the tests of the whole: daemons as real processes, with
// real TAPs, one network namespace for each host, on the loopback of nobody
// else.
//
// TestMain builds the daemon once. Every test enters namespaces of its own
// (package nstest) and makes hosts there; a [host] is a namespace on a small
// Ethernet segment with one daemon. What a test knows of a daemon it has from
// outside: `ipoibd status --json`, the kernel's view of ib0, and what other
// hosts can reach. So the types of the status here are its own, written from
// the documentation, and a change of the JSON breaks a test.
//
// TestFaults injects every kind of fault into one of two hosts under traffic and
// prints what became of each as a table; `make faults` does so ten times. Its
// witnesses are a ping at 1 ms from the other host ([probe]), one TCP connection
// of iperf3 ([stream]) and an `ip monitor` ([monitor]); the daemon's own account
// is compared with theirs. [faultKinds] has the faults.
//
// A daemon's log is shown when its test fails. Limits of time are about ten
// times what is measured on an idle machine; the figures are logged.
package e2e
