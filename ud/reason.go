package ud

import "sync/atomic"

// Reason says where a frame came in or where it ended.
type Reason uint8

// Reasons. Those before [Truncated] are no drops.
const (
	Read       Reason = iota // TX: read from the source
	Injected                 // TX: given by the slow path
	Received                 // RX: completed receive with status success
	Sent                     // TX: completed send with status success
	Delivered                // RX: written to the sink
	SlowPathed               // handed to the slow path
	Probed                   // RX: a probe of our own come back

	Truncated    // longer than its slot
	Runt         // shorter than its headers
	Offload      // virtio header that asks for segmentation or a checksum
	EtherType    // a protocol that IPoIB does not carry
	TooLong      // payload above the interface's MTU
	HiddenND     // ND behind IPv6 extension headers, or a chain of them that may end in ND
	NoPeers      // no snapshot published yet
	SlowPathFull // the slow path refused it
	InjectFull   // the inject queue is full
	NoQP         // injected while detached
	PostRefused  // the QP refused the post, its queue not being full
	Reset        // taken back when the QP was detached
	Held         // kept back longer than it could be of use
	NoGRH        // completion without the GRH flag: no source address
	BadGRH       // GRH area of neither layout
	OwnMulticast // our own message come back
	Malformed    // no IP header behind an IP ethertype
	SinkRefused  // the host's side did not take it

	numReason
)

var reasonNames = [numReason]string{
	Read: "read", Injected: "injected", Received: "received", Sent: "sent", Delivered: "delivered",
	SlowPathed: "slow_path", Probed: "probe",

	Truncated: "drop_truncated", Runt: "drop_runt", Offload: "drop_offload", EtherType: "drop_ethertype",
	TooLong: "drop_too_long", HiddenND: "drop_hidden_nd", NoPeers: "drop_no_peers", SlowPathFull: "drop_slow_path_full",
	InjectFull: "drop_inject_full", NoQP: "drop_no_qp", PostRefused: "drop_post_refused", Reset: "drop_reset", Held: "drop_held",
	NoGRH: "drop_no_grh", BadGRH: "drop_bad_grh", OwnMulticast: "drop_own_multicast",
	Malformed: "drop_malformed", SinkRefused: "drop_sink_refused",
}

func (r Reason) String() string {
	if r < numReason {
		return reasonNames[r]
	}
	return "unknown"
}

// txReasons and rxReasons are what each direction counts, in the order of its
// checks.
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
