package ud

import (
	"sync/atomic"

	"ipoibd/hca"
)

// Reason is where a frame entered or how it ended.
type Reason uint8

// Reasons. Those before [Truncated] are not drops.
const (
	Read         Reason = iota // TX: read from the source
	Injected                   // TX: from the slow path
	Received                   // RX: receive completed successfully
	Sent                       // TX: send completed successfully
	Delivered                  // RX: written to the sink
	SlowPathed                 // passed to the slow path
	Probed                     // RX: our own probe
	OwnMulticast               // RX: our own message, looped back

	Truncated     // longer than its slot
	Runt          // shorter than its headers
	Offload       // virtio header requests work that was not offered, or is inconsistent
	EtherType     // a protocol that IPoIB does not carry
	TooLong       // payload above the interface's MTU
	LongHeaders   // headers of a large frame longer than hca.MaxLSOHeader
	HiddenND      // ND behind IPv6 extension headers, or a chain of them that may end in ND
	ForeignSource // comes from, or claims, an IP address that is not the host's
	RouterMessage // an ND message of a router, which a host with checked sources is not
	NoPeers       // no snapshot published yet
	SlowPathFull  // no room in the slow path
	SlowPathLimit // RX: too many messages of one sender for the slow path
	InjectFull    // the inject queue is full
	NoQP          // injected while detached
	PostRefused   // the QP refused the post although its queue was not full
	Reset         // taken back when the QP was detached
	Held          // discarded during a long outage
	NoGRH         // RoCE: completion without the GRH flag: no source address
	BadLID        // InfiniBand: the source LID is not that of a port
	BadGRH        // GRH area is neither IPv4 nor IPv6
	Malformed     // no IP header behind an IP ethertype
	// UnknownStation: RX, a large receive for an address that is not known on the host's side, but for its last segment
	UnknownStation
	SinkRefused // the host did not accept it

	numReason
)

// reasons are the counters by reason, without the prefix of a direction.
var reasons = [numReason]hca.Counter{
	Read:         {Name: "read", Kind: hca.CountTotal},
	Injected:     {Name: "injected", Kind: hca.CountTotal},
	Received:     {Name: "received", Kind: hca.CountTotal},
	Sent:         {Name: "sent", Kind: hca.CountTotal},
	Delivered:    {Name: "delivered", Kind: hca.CountTotal},
	SlowPathed:   {Name: "slow_path", Kind: hca.CountTotal},
	Probed:       {Name: "probe", Kind: hca.CountTotal},
	OwnMulticast: {Name: "own_multicast", Kind: hca.CountTotal},

	Truncated:      {Name: "drop_truncated", Kind: hca.CountDrop},
	Runt:           {Name: "drop_runt", Kind: hca.CountDrop},
	Offload:        {Name: "drop_offload", Kind: hca.CountDrop},
	EtherType:      {Name: "drop_ethertype", Kind: hca.CountDrop},
	TooLong:        {Name: "drop_too_long", Kind: hca.CountDrop},
	LongHeaders:    {Name: "drop_long_headers", Kind: hca.CountDrop},
	HiddenND:       {Name: "drop_hidden_nd", Kind: hca.CountDrop},
	ForeignSource:  {Name: "drop_foreign_source", Kind: hca.CountDrop},
	RouterMessage:  {Name: "drop_router_message", Kind: hca.CountDrop},
	NoPeers:        {Name: "drop_no_peers", Kind: hca.CountDrop},
	SlowPathFull:   {Name: "drop_slow_path_full", Kind: hca.CountDrop},
	SlowPathLimit:  {Name: "drop_slow_path_limit", Kind: hca.CountDrop},
	UnknownStation: {Name: "drop_unknown_station", Kind: hca.CountDrop},
	InjectFull:     {Name: "drop_inject_full", Kind: hca.CountDrop},
	NoQP:           {Name: "drop_no_qp", Kind: hca.CountDrop},
	PostRefused:    {Name: "drop_post_refused", Kind: hca.CountDrop},
	Reset:          {Name: "drop_reset", Kind: hca.CountDrop},
	Held:           {Name: "drop_held", Kind: hca.CountDrop},
	NoGRH:          {Name: "drop_no_grh", Kind: hca.CountDrop},
	BadLID:         {Name: "drop_bad_lid", Kind: hca.CountDrop},
	BadGRH:         {Name: "drop_bad_grh", Kind: hca.CountDrop},
	Malformed:      {Name: "drop_malformed", Kind: hca.CountDrop},
	SinkRefused:    {Name: "drop_sink_refused", Kind: hca.CountDrop},
}

func (r Reason) String() string {
	if r < numReason {
		return reasons[r].Name
	}
	return "unknown"
}

// txReasons and rxReasons are the counters of each direction, in the order of
// its checks.
var (
	txReasons = []Reason{
		Read, Injected, Sent, SlowPathed,
		Truncated, Runt, Offload, EtherType, TooLong, LongHeaders, HiddenND, ForeignSource, RouterMessage,
		NoPeers, SlowPathFull, InjectFull, NoQP, PostRefused, Reset, Held,
	}
	rxReasons = []Reason{
		Received, Delivered, SlowPathed, Probed,
		Truncated, Runt, NoGRH, BadLID, BadGRH, EtherType, TooLong, HiddenND,
		NoPeers, OwnMulticast, Malformed, SlowPathFull, SlowPathLimit, UnknownStation, SinkRefused,
	}
)

// tally counts by reason.
type tally [numReason]atomic.Uint64

func (t *tally) add(r Reason, n int) {
	if n > 0 {
		t[r].Add(uint64(n))
	}
}
