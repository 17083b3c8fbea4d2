package ud

import (
	"math"
	"sync/atomic"
)

// detachedEpoch in grace.safe says that nothing is posted nor will be.
const detachedEpoch = math.MaxUint64

// grace knows which snapshot the oldest request under way may have been made
// from. A snapshot that was observed becomes safe once everything posted before
// it was observed is complete: one comparison, whatever the depth of the queue.
// Owned by Tx's goroutine, but for safe.
type grace struct {
	safe    atomic.Uint64
	next    uint64 // safe once barrier posts are complete
	barrier uint64
}

// start begins a life of the ring, nothing being posted.
func (g *grace) start(epoch uint64) {
	g.next, g.barrier = epoch, 0
	g.safe.Store(epoch)
}

// stop ends it.
func (g *grace) stop() { g.safe.Store(detachedEpoch) }

// observe says that epoch is in force, that every request made from an earlier
// one is among the first posted, and that the first completed are done.
func (g *grace) observe(epoch, posted, completed uint64) {
	if completed < g.barrier {
		return
	}
	g.safe.Store(g.next)
	if epoch == g.next {
		return
	}
	g.next, g.barrier = epoch, posted
	if completed >= posted {
		g.safe.Store(epoch)
	}
}
