// Bench compares ipoibd with other overlays between two hosts, side by side in one run. Run
// it as root in the root directory of the module, after `make build`; `make bench` does both:
//
//	go run ./scripts/bench [-only REGEXP] [-rounds N] [-seconds N] [-continue] [-step TEXT]
//
// # What is measured
//
// A contender is a way to connect two hosts. It has a row for each MTU of the interface that
// it provides to them:
//
//	veth         | the kernel without an overlay: the limit of the machine
//	vxlan        | the overlay in the kernel
//	prototype    | the minimum work of a program between a TAP and UDP, if its source is available
//	wireguard-go | with encryption
//	tinc         | without encryption
//	openvpn      | without encryption
//	ipoibd       |
//	ipoibd-fast  | with its fast path in the kernel (--fast-path)
//
// In each round, each row runs alone, with new hosts and new daemons. iperf3 measures TCP
// with 1 and 4 streams, from a to b and back. With UDP, iperf3 sends as fast as it can, and
// the datagrams that arrive count. sockperf sends datagrams of 64 bytes, and waits for the
// answer to each before it sends the next. "Beside TCP" is the 99th percentile of its round
// trips while a TCP stream sends in the same direction. Every second round runs in reverse
// order, so that a machine that slows down over time affects all rows alike. The result is the
// median of the rounds. With -continue the rounds can be spread over several runs.
//
// CPU is the user and system time of both daemons per GB that a single TCP stream carries,
// over both directions. The kernel charges work in interrupts to whichever process it
// interrupts, so the figure does not include all of it. Contenders in the kernel have no
// daemon and no figure.
//
// # Results
//
// The table is written to standard output and progress to standard error. Bench also writes
// bench.json, with the figures of every round, and the picture bench.svg to the directory of
// -out. With -step, it also updates the documentation: it adds rows with that text to
// docs/performance.md, and replaces docs/performance.svg, which README.md shows.
//
// A contender whose program is not installed is listed as missing, and one that fails as
// failed, with gaps in its row. Neither ends the run. The exit status is 1 if a contender
// failed. An interrupted run prints the completed rounds and saves nothing.
//
// Everything runs in new network, mount and process namespaces, as in `make demo`: however
// the run ends, the kernel removes its processes and interfaces. The helpers of package
// nstest are not used, because they would end the run at the first error.
package main
