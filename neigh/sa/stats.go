package sa

import "ipoibd/hca"

// Stats count the MADs of a port. Each received one is accounted for:
//
//	Received = Answered + Busy + the sum of Refused
type Stats struct {
	Sent       uint64 // MADs to the SA
	Repeated   uint64 // those that were not the first of their request
	SendFailed uint64 // those that could not be sent
	Timeouts   uint64 // those without an answer in time
	Received   uint64 // MADs that arrived
	Answered   uint64 // those that ended a request
	Busy       uint64 // those that asked to try later
	Refused    [NumRefusal]uint64

	PathsEvicted uint64 // paths forgotten to make room for others

	Outstanding int // requests that wait for their answer
	Queued      int // requests that wait for one of these to end
	Groups      int // memberships that are wanted, or not yet ended
	Paths       int // in the cache
}

// Counters returns the counters by name. It allocates.
func (s Stats) Counters() []hca.Counter {
	out := []hca.Counter{
		{Name: "sa_sent", Kind: hca.CountTotal, Value: s.Sent},
		{Name: "sa_repeated", Kind: hca.CountTotal, Value: s.Repeated},
		{Name: "sa_send_errors", Kind: hca.CountError, Value: s.SendFailed},
		{Name: "sa_timeouts", Kind: hca.CountError, Value: s.Timeouts},
		{Name: "sa_received", Kind: hca.CountTotal, Value: s.Received},
		{Name: "sa_answered", Kind: hca.CountTotal, Value: s.Answered},
		{Name: "sa_busy", Kind: hca.CountTotal, Value: s.Busy},
		{Name: "sa_paths_evicted", Kind: hca.CountTotal, Value: s.PathsEvicted},
		{Name: "sa_outstanding", Kind: hca.CountGauge, Value: uint64(s.Outstanding)},
		{Name: "sa_queued", Kind: hca.CountGauge, Value: uint64(s.Queued)},
		{Name: "sa_groups", Kind: hca.CountGauge, Value: uint64(s.Groups)},
		{Name: "sa_paths", Kind: hca.CountGauge, Value: uint64(s.Paths)},
	}
	for r, n := range s.Refused {
		out = append(out, hca.Counter{Name: "sa_refused_" + Refusal(r).String(), Kind: hca.CountError, Value: n})
	}
	return out
}

// Stats returns the counters and the current sizes.
func (c *Client) Stats() Stats {
	s := c.step.stats
	s.Outstanding, s.Queued = c.requests.outstanding, c.requests.urgent.Len()+c.requests.others.Len()
	s.Groups, s.Paths = len(c.groups.list), len(c.paths.byKey)
	return s
}
