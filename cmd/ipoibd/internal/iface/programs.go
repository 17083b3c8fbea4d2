package iface

import (
	"fmt"
	"log/slog"
	"sync"

	"ipoibd/bpf"
	"ipoibd/hca"
	"ipoibd/link"
)

// programs are the eBPF programs of a TAP. Without them, package ud drops what the filter
// drops, and the kernel selects the queues.
type programs struct {
	mu     sync.Mutex // guards the fields: Status may read counts during Close
	filter *bpf.Filter
	why    error // there are none
}

// attach attaches programs to a TAP. If that fails, the interface works without them.
func (p *programs) attach(env Env, tap TAP, queues int, log *slog.Logger) {
	if err := p.load(env.Programs, tap, queues); err != nil {
		env.NoBPF.Do(func() {
			// Containers usually lack the privileges. The status has the reason, and doctor a hint.
			log.Debug("eBPF is not available: "+
				"the daemon itself drops frames that IPoIB cannot carry, and wakes up for each", "reason", err)
		})
	}
}

func (p *programs) load(loaded *bpf.Programs, tap TAP, queues int) (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.why = err }()
	steering, err := loaded.Steering(queues)
	if err != nil {
		return err
	}
	filter, err := loaded.Filter()
	if err != nil {
		return err
	}
	if err := tap.SetPrograms(link.Programs{Filter: filter.FD(), Steering: steering}); err != nil {
		filter.Close()
		return err
	}
	p.filter = filter
	return nil
}

// observe reports the waits of the TAP's readers to the filter, if one is loaded, and to posted, with the number of the
// queue. No goroutine reads the TAP.
func (p *programs) observe(tap TAP, queues int, posted func(queue int)) {
	for i := range queues {
		onWait, onWake := func() { posted(i) }, (func())(nil)
		if filter := p.filter; filter != nil && queues == 1 { // it can track only one waiting reader
			onWait, onWake = func() { posted(0); filter.Waits() }, filter.Woke
		}
		tap.ObserveWaits(i, onWait, onWake)
	}
}

// lacking returns why the programs could not be attached, or "".
func (p *programs) lacking() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why == nil {
		return ""
	}
	return p.why.Error()
}

// detach removes the programs from a TAP that no goroutine reads. Their counts remain until close.
func (p *programs) detach(tap TAP) error {
	for i := range tap.Queues() {
		tap.ObserveWaits(i, nil, nil)
	}
	return tap.SetPrograms(link.NoPrograms)
}

// close gives the filter back. It must be detached, or the TAP closed, and no goroutine may read the
// TAP. Idempotent.
func (p *programs) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filter != nil {
		p.filter.Close()
		p.filter = nil
	}
}

// filterDrops are the names of the counters of frames that the filter drops.
var filterDrops = [bpf.NumKind]string{
	bpf.Runt: "runt", bpf.VLAN: "vlan", bpf.LLC: "llc", bpf.LLDP: "lldp", bpf.PPPoE: "pppoe", bpf.OtherType: "other",
}

// counters returns the counts of the filter and how many frames it has dropped, or nil and 0
// without a filter.
func (p *programs) counters() (out []hca.Counter, dropped uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.filter == nil {
		return nil, 0
	}
	c := p.filter.Counts()
	out = append(out, hca.Counter{Name: "filter_passed", Kind: hca.CountTotal, Value: c.Kinds[bpf.Passed]})
	for kind, name := range filterDrops {
		if name != "" {
			out = append(out, hca.Counter{Name: "drop_filter_" + name, Kind: hca.CountDrop, Value: c.Kinds[kind]})
			dropped += c.Kinds[kind]
		}
	}
	out = appendHistogram(out, "segments_", c.Segments, 1, 7)
	out = appendHistogram(out, "bytes_", c.Bytes, 6, 16)
	out = appendHistogram(out, "wait_ns_", c.Waits, 11, 24)
	return append(out, hca.Counter{Name: "waited_ns", Kind: hca.CountTotal, Value: uint64(c.Waited)}), dropped
}

// appendHistogram appends the buckets from first to last as counters that are named after
// their values. The first and the last one include the buckets below and above.
func appendHistogram(out []hca.Counter, prefix string, h bpf.Histogram, first, last int) []hca.Counter {
	var sum uint64
	for n, count := range h {
		sum += count
		if n < first || n >= last && n < len(h)-1 {
			continue
		}
		low, high := 1<<(n-1), 1<<n-1
		name := fmt.Sprintf("%d_%d", low, high)
		switch {
		case n == first && low == high:
			name = fmt.Sprint(low)
		case n == first:
			name = fmt.Sprintf("0_%d", high)
		case n >= last:
			name = fmt.Sprintf("%d_more", 1<<(last-1))
		}
		out = append(out, hca.Counter{Name: prefix + name, Kind: hca.CountTotal, Value: sum})
		sum = 0
	}
	return out
}
