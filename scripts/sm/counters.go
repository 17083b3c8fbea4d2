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
}

func newCounters() Counters {
	return Counters{Drops: map[Reason]int{}, PKeys: map[hca.PKey]int{}}
}

// clone returns a copy that shares nothing.
func (c *Counters) clone() Counters {
	out := *c
	out.Drops, out.PKeys = maps.Clone(c.Drops), maps.Clone(c.PKeys)
	return out
}
