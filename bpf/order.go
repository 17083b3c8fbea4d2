package bpf

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

const (
	numFlows = len(fastFlows{}.Left)

	// A lane is examined lossLooks times, at least lossEvery apart; what is missing each time was lost. A frame reaches its
	// lane within lossEvery unless the machine is starved.
	lossEvery = 250 * time.Millisecond
	lossLooks = 4
)

// laneFlows counts the flows of one lane in one direction. Any goroutine may call its methods.
type laneFlows struct {
	mu           sync.Mutex
	left, passed []uint32 // mapped: the lane's buckets, a power of two of them
	ready        *uint32  // mapped: a bit for each lane
	bit          uint32   // of this one
	closed       bool

	least []uint32 // of each bucket: how many were missing, at least
	looks int
	last  time.Time // of the looks
}

func newLaneFlows(f *fastFlows, ready *uint32, lane, lanes int) *laneFlows {
	n := numFlows / lanes
	first, end := lane*n, (lane+1)*n
	return &laneFlows{
		left: f.Left[first:end], passed: f.Passed[first:end], ready: ready, bit: 1 << lane, least: make([]uint32, n),
	}
}

// done counts n packets of a flow, which the lane has passed on.
func (l *laneFlows) done(flow, n uint32) {
	if flow == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	b := flow & uint32(len(l.left)-1)
	passed := atomic.LoadUint32(&l.passed[b])
	// The daemon's own messages were never counted in left. They may stand in for a frame that is still on its way.
	atomic.StoreUint32(&l.passed[b], passed+min(n, atomic.LoadUint32(&l.left[b])-passed))
}

// empty examines the lane, which is empty now.
func (l *laneFlows) empty(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || now.Sub(l.last) < lossEvery {
		return
	}
	if l.looks == 0 {
		atomic.OrUint32(l.ready, l.bit)
		for b := range l.least {
			l.least[b] = math.MaxUint32
		}
	}
	l.last = now
	l.looks++
	for b := range l.least {
		l.least[b] = min(l.least[b], atomic.LoadUint32(&l.left[b])-atomic.LoadUint32(&l.passed[b]))
	}
	if l.looks < lossLooks {
		return
	}
	l.looks = 0
	for b, lost := range l.least {
		atomic.AddUint32(&l.passed[b], lost)
	}
}

// close makes the other methods do nothing.
func (l *laneFlows) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// Sent reports that n packets of a flow ([Flow]) were sent to the wire, or dropped; flow 0 is ignored. Any goroutine may
// call it. Whatever lane has sent them, the host's frame was left to the lane that the steering program chooses.
func (g *Gate) Sent(flow, n uint32) { g.tx[uint64(flow)*uint64(len(g.tx))>>32].done(flow, n) }

// Received reports that a lane has passed n packets of a flow to the host, or has dropped them; flow 0 is ignored. Any
// goroutine may call it.
func (g *Gate) Received(lane int, flow, n uint32) { g.rx[lane].done(flow, n) }

// SentAll reports that a lane is empty: it has sent all that it got from the TAP up to now. Any goroutine may call it.
func (g *Gate) SentAll(lane int, now time.Time) {
	if g.path.isAttached(g.spec.Netdev) {
		g.tx[lane].empty(now)
	}
}

// ReceivedAll reports that a lane is empty: it has passed on all that it got from the underlay up to now. Any goroutine
// may call it.
func (g *Gate) ReceivedAll(lane int, now time.Time) {
	if g.path.isAttached(g.spec.Underlay) {
		g.rx[lane].empty(now)
	}
}
