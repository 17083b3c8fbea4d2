package ud

import "ipoibd/hca"

// appendTo appends the counters of reasons, in that order.
func (t *tally) appendTo(out []hca.Counter, prefix string, of []Reason) []hca.Counter {
	for _, r := range of {
		out = append(out, hca.Counter{Name: prefix + r.String(), Kind: reasons[r].Kind, Value: t[r].Load()})
	}
	return out
}

func (s *ringStats) appendTo(out []hca.Counter, prefix string) []hca.Counter {
	return append(out,
		hca.Counter{Name: prefix + "posts", Kind: hca.CountTotal, Value: s.posts.Load()},
		hca.Counter{Name: prefix + "completions", Kind: hca.CountTotal, Value: s.completions.Load()},
		hca.Counter{Name: prefix + "taken_back", Kind: hca.CountTotal, Value: s.reset.Load()},
		hca.Counter{Name: prefix + "outstanding", Kind: hca.CountGauge, Value: uint64(s.outstanding.Load())},
		hca.Counter{Name: prefix + "stale_completions", Kind: hca.CountTotal, Value: s.stale.Load()},
		hca.Counter{Name: prefix + "foreign_completions", Kind: hca.CountError, Value: s.foreign.Load()},
	)
}

// Counters returns the transmit counters. It allocates; any goroutine may call
// it. Names begin with "tx_"; the package documentation has the sums that hold
// among them.
func (t *Tx) Counters() []hca.Counter {
	const prefix = "tx_"
	out := t.tally.appendTo(nil, prefix, txReasons)
	out = t.failed.appendTo(out, prefix, hca.CountDrop)
	out = t.ring.stats.appendTo(out, prefix)
	return append(out,
		hca.Counter{Name: prefix + "queued", Kind: hca.CountGauge, Value: uint64(t.queued())},
		hca.Counter{Name: prefix + "stalls", Kind: hca.CountTotal, Value: t.stalls.Load()},
		hca.Counter{Name: prefix + "large", Kind: hca.CountTotal, Value: t.cut.Load()},
		hca.Counter{Name: prefix + "segments", Kind: hca.CountTotal, Value: t.pieces.Load()},
		hca.Counter{Name: prefix + "segment_drop_unresolved", Kind: hca.CountDrop, Value: t.lost.Load()},
	)
}

// Counters returns the receive counters, like [Tx.Counters]. Names begin with
// "rx_".
func (r *Rx) Counters() []hca.Counter {
	const prefix = "rx_"
	out := r.tally.appendTo(nil, prefix, rxReasons)
	out = r.failed.appendTo(out, prefix, hca.CountTotal)
	out = r.ring.stats.appendTo(out, prefix)
	return append(out, hca.Counter{Name: prefix + "merged", Kind: hca.CountTotal, Value: r.merged.Load()})
}
