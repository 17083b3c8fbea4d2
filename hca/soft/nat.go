package soft

import (
	"net/netip"
	"sync"

	"ipoibd/hca/roce"
)

// natSuspects bounds the sources that are remembered between two wrong ICRCs.
const natSuspects = 16

// natPair is a source address as seen, and the one that its ICRC tells of.
type natPair struct{ seen, sender netip.Addr }

// natWatch notices an address translation in between: every single datagram
// with a wrong ICRC has some address that would make it right, but two agree
// only when a NAT rewrote it.
type natWatch struct {
	recent [natSuspects]natPair // the receive loop's own
	next   int

	mu    sync.Mutex
	found natPair
}

// suspectNAT looks at a datagram with a wrong ICRC; the path's identification
// is 0 where it was not seen.
func (d *Device) suspectNAT(path *roce.Path, datagram []byte) {
	sender, ok := roce.SourceBehindNAT(path, datagram)
	if ok && d.nat.note(natPair{seen: path.Src, sender: sender}) {
		d.counts.add(natSuspected, 1)
	}
}

// note remembers a pair; true when it was there already.
func (w *natWatch) note(pair natPair) bool {
	for i := range w.recent {
		if w.recent[i] == pair {
			w.mu.Lock()
			w.found = pair
			w.mu.Unlock()
			return true
		}
	}
	w.recent[w.next] = pair
	w.next = (w.next + 1) % natSuspects
	return false
}

// NATSuspect returns the last source address that seems to be translated on the
// way here, and the one that its sender seems to have.
func (d *Device) NATSuspect() (seen, sender netip.Addr, ok bool) {
	d.nat.mu.Lock()
	defer d.nat.mu.Unlock()
	return d.nat.found.seen, d.nat.found.sender, d.nat.found.seen.IsValid()
}
