package top

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/docs"
)

// Rates are the changes of an interface between two statuses, each per second.
type Rates struct {
	RXBits, TXBits       float64
	RXPackets, TXPackets float64
	Drops, KernelDrops   float64
	Reasons              []Reason // counters of lost frames that grew, the fastest first
}

// Reason is a counter of lost frames.
type Reason struct {
	Counter string
	Rate    float64 // frames per second
	Total   uint64
}

// ratesOf compares two statuses of one daemon. It returns nil if there is no interface of this
// name in both, or if no time has passed between them.
func ratesOf(before, now *report.Status, name string) *Rates {
	a, b := find(before, name), find(now, name)
	if a == nil || b == nil {
		return nil
	}
	passed := now.Time.Sub(before.Time)
	if passed <= 0 {
		return nil
	}
	per := func(before, now uint64) float64 { return perSecond(before, now, passed) }
	kernel := func(name string) float64 {
		return per(a.Kernel[name].Value, b.Kernel[name].Value)
	}
	was, is := a.Traffic(), b.Traffic()
	r := &Rates{
		RXBits: 8 * per(was.RXBytes, is.RXBytes), TXBits: 8 * per(was.TXBytes, is.TXBytes),
		RXPackets: per(was.RXPackets, is.RXPackets), TXPackets: per(was.TXPackets, is.TXPackets),
		Drops: per(a.Drops, b.Drops),
		KernelDrops: kernel(docs.InterfaceKernelRxDropped) + kernel(docs.InterfaceKernelRxErrors) +
			kernel(docs.InterfaceKernelTxDropped) + kernel(docs.InterfaceKernelTxErrors),
	}
	for counter, n := range b.Counters {
		if grown := per(a.Counters[counter].Value, n.Value); grown > 0 && docs.Lost(counter) {
			r.Reasons = append(r.Reasons, Reason{counter, grown, n.Value})
		}
	}
	slices.SortFunc(r.Reasons, func(x, y Reason) int {
		return cmp.Or(cmp.Compare(y.Rate, x.Rate), strings.Compare(x.Counter, y.Counter))
	})
	return r
}

// perSecond is 0 if the counter went back, as after the kernel's interface was created again.
func perSecond(before, now uint64, passed time.Duration) float64 {
	if now <= before {
		return 0
	}
	return float64(now-before) / passed.Seconds()
}

func find(s *report.Status, name string) *report.Interface {
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.Interfaces, func(f report.Interface) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &s.Interfaces[i]
}
