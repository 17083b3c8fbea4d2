package sm

import (
	"maps"

	"ipoibd/hca"
)

// Counters count what happened on a port of the switch. "Sent" and "received" are from the host's point of view.
type Counters struct {
	Sent      int // packets from the host
	Global    int // of those, packets with a GRH that are not for a group
	Received  int // packets to the host
	Multicast int // of those, packets to groups
	Requests  int // of the packets sent, those relayed to ibsim
	Answers   int // of the packets received, those from ibsim or in its name
	Hellos    int // control frames from the host
	Drops     map[Reason]int
	PKeys     map[hca.PKey]int // packets sent, by P_Key
	Lanes     map[Lane]int     // of those, packets that are not for QP1, by P_Key and SL
	PathBits  int              // packets received whose SLID has path bits
}

// Lane is what a packet says about its way: the partition and the SL.
type Lane struct {
	PKey hca.PKey
	SL   uint8
}

func newCounters() Counters {
	return Counters{Drops: map[Reason]int{}, PKeys: map[hca.PKey]int{}, Lanes: map[Lane]int{}}
}

// clone returns a copy that shares nothing.
func (c *Counters) clone() Counters {
	out := *c
	out.Drops, out.PKeys, out.Lanes = maps.Clone(c.Drops), maps.Clone(c.PKeys), maps.Clone(c.Lanes)
	return out
}
