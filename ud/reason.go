package ud

import "sync/atomic"

// Reason is where a frame entered or how it ended.
type Reason uint8

// Reasons. Those before [Truncated] are not drops.
const (
	Read         Reason = iota // TX: read from the source
	Injected                   // TX: from the slow path
	Received                   // RX: receive completed successfully
	Sent                       // TX: send completed successfully
	Delivered                  // RX: written to the sink
	SlowPathed                 // handed to the slow path
	Probed                     // RX: our own probe
	OwnMulticast               // RX: our own message, looped back

	Truncated    // longer than its slot
	Runt         // shorter than its headers
	Offload      // virtio header requests segmentation or a checksum
	EtherType    // a protocol that IPoIB does not carry
	TooLong      // payload above the interface's MTU
	HiddenND     // ND behind IPv6 extension headers, or a chain of them that may end in ND
	NoPeers      // no snapshot published yet
	SlowPathFull // refused by the slow path
	InjectFull   // the inject queue is full
	NoQP         // injected while detached
	PostRefused  // the QP refused the post although its queue was not full
	Reset        // taken back when the QP was detached
	Held         // discarded during a long outage
	NoGRH        // completion without the GRH flag: no source address
	BadGRH       // GRH area is neither IPv4 nor IPv6
	Malformed    // no IP header behind an IP ethertype
	SinkRefused  // the host did not accept it

	numReason
)

var reasonNames = [numReason]string{
	Read: "read", Injected: "injected", Received: "received", Sent: "sent", Delivered: "delivered",
	SlowPathed: "slow_path", Probed: "probe", OwnMulticast: "own_multicast",

	Truncated: "drop_truncated", Runt: "drop_runt", Offload: "drop_offload", EtherType: "drop_ethertype",
	TooLong: "drop_too_long", HiddenND: "drop_hidden_nd", NoPeers: "drop_no_peers", SlowPathFull: "drop_slow_path_full",
	InjectFull: "drop_inject_full", NoQP: "drop_no_qp", PostRefused: "drop_post_refused", Reset: "drop_reset", Held: "drop_held",
	NoGRH: "drop_no_grh", BadGRH: "drop_bad_grh", Malformed: "drop_malformed", SinkRefused: "drop_sink_refused",
}

func (r Reason) String() string {
	if r < numReason {
		return reasonNames[r]
	}
	return "unknown"
}

// txReasons and rxReasons are the counters of each direction, in the order of
// its checks.
var (
	txReasons = []Reason{
		Read, Injected, Sent, SlowPathed,
		Truncated, Runt, Offload, EtherType, TooLong, HiddenND, NoPeers, SlowPathFull, InjectFull, NoQP, PostRefused, Reset, Held,
	}
	rxReasons = []Reason{
		Received, Delivered, SlowPathed, Probed,
		Truncated, Runt, NoGRH, BadGRH, EtherType, TooLong, HiddenND, NoPeers, OwnMulticast, Malformed, SlowPathFull, SinkRefused,
	}
)

// tally counts by reason.
type tally [numReason]atomic.Uint64

func (t *tally) add(r Reason, n int) {
	if n > 0 {
		t[r].Add(uint64(n))
	}
}
