package soft

import (
	"net/netip"
	"sync"

	"ipoibd/hca/roce"
)

// natSuspects bounds the sources that are remembered between two wrong ICRCs.
const natSuspects = 16

// natPair is a source address as seen, and the one that the ICRC implies.
type natPair struct{ seen, sender netip.Addr }

// natTrace is the evidence of one datagram. The ICRC distinguishes it from a repetition of
// the same datagram, which is no further evidence.
type natTrace struct {
	natPair
	icrc [roce.ICRCLen]byte
}

// natTraces are the recent traces of a lane.
type natTraces struct {
	recent [natSuspects]natTrace
	next   int
}

// natWatch notices an address translation on the way. For each datagram with a wrong
// ICRC there is some source address that would make it right, but two different
// datagrams agree on that address only if a NAT rewrote it, or if they are forged. A
// datagram does not show which, so the notice names both. A source whose own datagrams
// arrive intact is not suspected.
type natWatch struct {
	mu    sync.Mutex
	found natPair
}

// suspectNAT examines a datagram with a wrong ICRC. The path's identification is 0 if it is
// unknown.
func (r *receiver) suspectNAT(path *roce.Path, datagram []byte) {
	sender, ok := roce.SourceBehindNAT(path, datagram)
	if !ok {
		return
	}
	trace := natTrace{natPair: natPair{seen: path.Src, sender: sender}}
	copy(trace.icrc[:], datagram[len(datagram)-roce.ICRCLen:])
	if r.traces.note(trace) {
		r.lane.counts.add(natSuspected, 1)
		r.lane.dev.nat.set(trace.natPair)
	}
}

// note remembers a trace. It returns true if the trace of another datagram agrees with it.
func (w *natTraces) note(t natTrace) bool {
	for i := range w.recent {
		if w.recent[i].natPair == t.natPair {
			return w.recent[i].icrc != t.icrc
		}
	}
	w.recent[w.next] = t
	w.next = (w.next + 1) % natSuspects
	return false
}

func (w *natWatch) set(found natPair) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.found = found
}

// NATSuspect returns the last source address that seems to be translated on the
// way here, and the one that its sender seems to have.
func (d *Device) NATSuspect() (seen, sender netip.Addr, ok bool) {
	d.nat.mu.Lock()
	defer d.nat.mu.Unlock()
	return d.nat.found.seen, d.nat.found.sender, d.nat.found.seen.IsValid()
}
