// Bench compares ipoibd with other overlays between two hosts, side by side in one run. Run
// it as root in the root of the module, after `make build`; `make bench` does both:
//
//	go run ./scripts/bench [-only REGEXP] [-rounds N] [-seconds N] [-continue] [-step TEXT]
//
// # What is measured
//
// A contender is a way to join two hosts; it has a row for each MTU of the interface that
// it gives them:
//
//	veth         | the kernel without an overlay: the limit of the machine
//	vxlan        | the overlay in the kernel
//	prototype    | the least that a program between a TAP and UDP can do, if its source is there
//	wireguard-go | with its encryption
//	tinc         | without encryption
//	openvpn      | without encryption
//	ipoibd       |
//
// In each round, each row gets new hosts and new daemons, and then the machine for itself:
// iperf3 with TCP, 1 and 4 streams, from a to b and back, and with as much UDP as it can
// send, of which the datagrams that arrive count; and sockperf, which waits for the answer
// to each datagram of 64 bytes before it sends the next. Every second round runs in reverse
// order, so that a machine which becomes slower treats all alike. The result is the median
// of the rounds. With -continue the rounds may be spread over several runs.
//
// CPU is the time of both daemons, user and system, for each GB that a single TCP stream
// carries, over both directions. What the kernel does in interrupts is charged to whichever
// process they interrupt, and so is not all in there. The kernel's own contenders have none.
//
// # What remains of a run
//
// The table goes to standard output and progress to standard error. The folder of -out gets
// bench.json, with the figures of every round, and the picture bench.svg. With -step, the
// run also becomes part of the documentation: docs/performance.md gets rows with that text,
// and docs/performance.svg, which README shows, is replaced.
//
// A contender whose program is not installed is listed as missing, and one that fails as
// failed, with gaps in its row. Neither ends the run. The exit status is 1 if a contender
// failed. An interrupted run prints the rounds that it has and saves nothing.
//
// Everything runs in new network, mount and process namespaces, as in `make demo`: however
// the run ends, the kernel removes its processes and interfaces. The helpers of package
// nstest would end the run at the first error, so they are not used.
package main
