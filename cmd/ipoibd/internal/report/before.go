package report

import (
	"maps"
	"slices"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
)

// Totals are counters by name with their kinds, without gauges. They are what was counted before a
// hand-over, or before an interface was rebuilt, so that counters never decrease.
type Totals map[string]Total

// Total is the value of a counter, and its kind.
type Total struct {
	Value uint64          `json:"value"`
	Kind  hca.CounterKind `json:"kind"`
}

// TotalsOf returns the counters of c that are not gauges.
func TotalsOf(c Counters) Totals {
	t := Totals{}
	for name, n := range c {
		if n.Kind != hca.CountGauge {
			t[name] = Total(n)
		}
	}
	return t
}

// AddTotals adds what was counted before.
func (c Counters) AddTotals(before Totals) {
	for name, n := range before {
		c[name] = Count{c[name].Value + n.Value, n.Kind}
	}
}

// After returns the histogram with what was counted before.
func (h Histogram) After(before Histogram) Histogram {
	sum := Histogram{Count: h.Count + before.Count, Sum: h.Sum + before.Sum, Buckets: make([]Bucket, len(h.Buckets))}
	for i, b := range h.Buckets {
		sum.Buckets[i] = b
		for _, old := range before.Buckets {
			if old.LE == b.LE {
				sum.Buckets[i].Count += old.Count
			}
		}
	}
	return sum
}

// maxHistory bounds the recoveries of which a report that continues another one tells.
const maxHistory = 32

// After returns the report with the recoveries that were counted before; nil: none.
func (r *Recovery) After(before *Recovery) *Recovery {
	if before == nil {
		return r
	}
	sum := *r
	sum.Recovered += before.Recovered
	sum.OutageTotal = journal.Seconds(int64(r.OutageTotal) + int64(before.OutageTotal))
	sum.FoundRTS += before.FoundRTS
	sum.Absorbed += before.Absorbed
	sum.Stale += before.Stale
	sum.Rungs, sum.Reasons = addCounts(r.Rungs, before.Rungs), addCounts(r.Reasons, before.Reasons)
	sum.Repairs = maps.Clone(before.Repairs)
	if sum.Repairs == nil {
		sum.Repairs = map[string]Histogram{}
	}
	for rung, h := range r.Repairs {
		sum.Repairs[rung] = h.After(sum.Repairs[rung])
	}
	sum.History = append(append([]RecoveryRecord{}, before.History...), r.History...)
	sum.History = sum.History[max(0, len(sum.History)-max(maxHistory, len(r.History))):]
	return &sum
}

// Past returns the report without the current recovery.
func (r *Recovery) Past() *Recovery {
	past := *r
	past.History = slices.DeleteFunc(slices.Clone(r.History), func(x RecoveryRecord) bool { return x.End.IsZero() })
	return &past
}

func addCounts(a, b map[string]uint64) map[string]uint64 {
	sum := map[string]uint64{}
	for _, m := range []map[string]uint64{a, b} {
		for name, n := range m {
			sum[name] += n
		}
	}
	return sum
}
