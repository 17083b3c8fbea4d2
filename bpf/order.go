package bpf

import (
	"encoding/binary"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

const (
	maxLanes = len(fastFastQp{}.Ports)
	numFlows = len(fastFastFlows{}.Left)

	// The counts of a lane are compared lossLooks times, lossEvery apart. What is missing each time was lost. Between two looks,
	// all that is not lost has reached the lane, unless the machine takes all processors from it for longer.
	lossEvery = 250 * time.Millisecond
	lossLooks = 4
)

// losses finds what was left to a lane and has not reached it.
type losses struct {
	mu    sync.Mutex       // guards the lane's counts of what has passed, and what follows
	least [numFlows]uint32 // of each flow: how many were missing, at least
	looks int
	last  time.Time // of the looks
}

// Sent says that a lane has sent one message each of some flows (see [Flow]) to the wire. Any goroutine may call it.
func (g *Gate) Sent(lane int, flows []uint32) {
	g.passed(&g.path.orders[g.slot].Tx, &g.tx[lane], lane, flows)
}

// Received says that a lane has passed on one message each of some flows to the host, or dropped it. Any goroutine may call
// it.
func (g *Gate) Received(lane int, flows []uint32) {
	g.passed(&g.path.orders[g.slot].Rx, &g.rx[lane], lane, flows)
}

func (g *Gate) passed(f *fastFastFlows, l *losses, lane int, flows []uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.closed.Load() {
		return
	}
	first, n := g.buckets(lane)
	for _, flow := range flows {
		b := first + int(flow)&(n-1)
		// More than was left was left by no program, such as messages of the daemon itself.
		if passed := atomic.LoadUint32(&f.Passed[b]); flow != 0 && passed != atomic.LoadUint32(&f.Left[b]) {
			atomic.StoreUint32(&f.Passed[b], passed+1)
		}
	}
}

// settle waits until no goroutine counts what a lane has passed on. None begins to, since the gate is closed for good.
func (g *Gate) settle() {
	for lane := range g.spec.Ports {
		for _, l := range []*losses{&g.tx[lane], &g.rx[lane]} {
			l.mu.Lock()
			l.mu.Unlock() //nolint:staticcheck // the lock is only waited for
		}
	}
}

// buckets returns the first bucket of a lane, and their number, a power of two.
func (g *Gate) buckets(lane int) (first, n int) {
	n = numFlows / len(g.spec.Ports)
	return lane * n, n
}

// SentAll says that a lane had nothing more from the TAP to send just now. Any goroutine may call it.
func (g *Gate) SentAll(lane int, now time.Time) {
	g.passedAll(&g.path.qps[g.slot].TxReady, &g.path.orders[g.slot].Tx, &g.tx[lane], lane, now)
}

// ReceivedAll says that a lane had nothing more from the underlay to pass on just now. Any goroutine may call it.
func (g *Gate) ReceivedAll(lane int, now time.Time) {
	g.passedAll(&g.path.qps[g.slot].RxReady, &g.path.orders[g.slot].Rx, &g.rx[lane], lane, now)
}

func (g *Gate) passedAll(ready *uint32, f *fastFastFlows, l *losses, lane int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.closed.Load() || now.Sub(l.last) < lossEvery {
		return
	}
	if l.looks == 0 {
		atomic.OrUint32(ready, 1<<lane)
		for b := range l.least {
			l.least[b] = math.MaxUint32
		}
	}
	l.last = now
	l.looks++
	first, n := g.buckets(lane)
	for b := first; b < first+n; b++ {
		l.least[b] = min(l.least[b], atomic.LoadUint32(&f.Left[b])-atomic.LoadUint32(&f.Passed[b]))
	}
	if l.looks < lossLooks {
		return
	}
	l.looks = 0
	for b := first; b < first+n; b++ {
		if lost := l.least[b]; lost > 0 {
			atomic.AddUint32(&f.Passed[b], lost)
		}
	}
}

// Flow returns the hash of the flow of a packet with an Ethernet type, as the programs compute it: of its addresses, protocol
// and ports. It returns 0 for what is not IP. The packet may be cut behind the ports.
func Flow(etherType uint16, packet []byte) uint32 {
	switch {
	case etherType == 0x0800 && len(packet) >= 20:
		hash := mix(mix(0, packet[12:]), packet[16:])
		if binary.BigEndian.Uint16(packet[6:])&0x3fff == 0 { // no fragment
			hash = mixTransport(hash, packet[9], packet, int(packet[0]&0xf)*4)
		}
		return finish(hash)
	case etherType == 0x86dd && len(packet) >= 40:
		hash := uint32(0)
		for at := 8; at < 40; at += 4 {
			hash = mix(hash, packet[at:])
		}
		switch next := packet[6]; next {
		case 0, 43, 44, 51, 60: // extension headers, see flow.h
		default:
			hash = mixTransport(hash, next, packet, 40)
		}
		return finish(hash)
	}
	return 0
}

func mixTransport(hash uint32, protocol uint8, packet []byte, at int) uint32 {
	hash = mixWord(hash, uint32(protocol))
	switch protocol {
	case 6, 17, 33, 132, 136: // with ports, see flow.h
		if at+4 <= len(packet) {
			hash = mix(hash, packet[at:])
		}
	}
	return hash
}

// mix adds the first word of some bytes, as a little-endian machine reads it.
func mix(hash uint32, b []byte) uint32 { return mixWord(hash, binary.LittleEndian.Uint32(b)) }

func mixWord(hash, word uint32) uint32 {
	hash ^= bits.RotateLeft32(word*0xcc9e2d51, 15) * 0x1b873593
	return bits.RotateLeft32(hash, 13)*5 + 0xe6546b64
}

func finish(hash uint32) uint32 {
	hash = (hash ^ hash>>16) * 0x85ebca6b
	hash = (hash ^ hash>>13) * 0xc2b2ae35
	return hash ^ hash>>16
}
