package ud

import "sync/atomic"

// peerBytes adds up the bytes of consecutive frames of one peer, so that a counter that several lanes write is
// written once for a run of frames. The bytes are IP packets, or ARP on the wire: what follows the IPoIB
// header. A large frame counts as it is, before it is cut and after it was joined.
type peerBytes struct {
	counter *atomic.Uint64
	n       uint64
}

// add counts n bytes; counter may be nil.
func (b *peerBytes) add(counter *atomic.Uint64, n int) {
	if counter != b.counter {
		b.flush()
		b.counter = counter
	}
	b.n += uint64(n)
}

// flush ends the run.
func (b *peerBytes) flush() {
	if b.counter != nil {
		b.counter.Add(b.n)
	}
	*b = peerBytes{}
}
