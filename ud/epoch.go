package ud

import (
	"math"
	"sync/atomic"
)

// detachedEpoch in grace.safe means that nothing is posted or can be.
const detachedEpoch = math.MaxUint64

// grace tracks the oldest snapshot that an outstanding request may have been
// made from. An observed snapshot becomes safe once everything posted before
// the observation has completed, which takes one comparison regardless of the
// queue's depth. Owned by Tx's goroutine, except for safe.
type grace struct {
	safe    atomic.Uint64
	next    uint64 // becomes safe once barrier posts have completed
	barrier uint64
}

// start resets g for a newly attached ring, with nothing posted.
func (g *grace) start(epoch uint64) {
	g.next, g.barrier = epoch, 0
	g.safe.Store(epoch)
}

// stop records that the ring is detached.
func (g *grace) stop() { g.safe.Store(detachedEpoch) }

// observe records that epoch is current. Every request made from an earlier
// snapshot is among the first posted requests, and the first completed of them
// are done.
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
