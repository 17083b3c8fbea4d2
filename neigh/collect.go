package neigh

import (
	"time"

	"ipoibd/hca"
)

// promote notes that the host sends data to p, which puts it into the used
// class. While that is full of busy peers p stays where it is, the last to go.
func (t *Table) promote(p *peer) {
	if !p.used && t.makeRoomUsed() {
		t.peers.use(p)
	}
	t.peers.touch(p, t.now)
	t.awaits(p)
}

// makeRoomAt makes room for one more peer at a GID. It evicts the peer seen longest
// ago, preferring peers that the host never sent data to.
func (t *Table) makeRoomAt(gid hca.GID) {
	there := t.peers.byGID[gid]
	if len(there) < maxPeersPerGID {
		return
	}
	first := there[0]
	for _, p := range there[1:] {
		busy, firstBusy := p.busy(), first.busy()
		if firstBusy && !busy || firstBusy == busy && p.seen.Before(first.seen) {
			first = p
		}
	}
	t.evict(first)
}

// makeRoomHeard makes room for one peer in the heard class. Those that the data
// path has sent to meanwhile are not of that class any more.
func (t *Table) makeRoomHeard() {
	for passed := 0; t.peers.heard.Len() >= t.conf.MaxHeard; passed++ {
		p := oldest(&t.peers.heard)
		if passed < maxPromotions && p.wasSent() {
			t.promote(p)
			continue
		}
		t.evict(p)
	}
}

// makeRoomUsed makes room for one peer in the used class, if it can.
func (t *Table) makeRoomUsed() bool {
	if t.peers.used.Len() < t.conf.MaxPeers-t.conf.MaxHeard {
		return true
	}
	for range maxPromotions {
		p := oldest(&t.peers.used)
		if p.wasSent() {
			t.promote(p)
			continue
		}
		if t.now.Sub(p.seen) < pressureIdle {
			return false
		}
		t.evict(p)
		return true
	}
	return false
}

func (t *Table) evict(p *peer) {
	t.stats.Evicted++
	t.forget(p)
}

// forget removes p, its handle, and what is kept for it. Its names are remembered.
func (t *Table) forget(p *peer) {
	t.dropKept(&p.kept, DropEvicted)
	t.voidHandle(p)
	t.peers.remove(p)
	t.remember(p)
	if !p.plain {
		t.pub.changeBy(t.now.Add(latePause))
	}
}

// sweep collects idle peers. Its cost is O(peers), once per sweepInterval.
func (t *Table) sweep() {
	for _, class := range t.peers.classes() {
		all(class, t.collect)
	}
	if t.mac.refresh(t.now) {
		t.pub.change()
	}
}

// collect forgets p if it was idle for too long.
func (t *Table) collect(p *peer) {
	if t.now.Sub(p.seen) >= p.maxIdle() {
		t.forget(p)
	}
}

// maxIdle is how long p is kept without having been seen.
func (p *peer) maxIdle() time.Duration {
	if p.used && len(p.ips) > 0 {
		return usedIdle
	}
	return heardIdle
}
