package neigh

import (
	"time"

	"ipoibd/hca"
)

// promote notes that the host sends data to p and moves p to the used class. If
// that class is full of busy peers, p stays in the heard class, as the last to
// be evicted.
func (t *Table) promote(p *peer) {
	if !p.used && t.makeRoomUsed() {
		t.peers.use(p)
	}
	t.peers.touch(p, t.now)
	t.dataSent(p)
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

// makeRoomHeard makes room for one peer in the heard class. It promotes peers
// that the data path has sent to in the meantime.
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
	t.removePeer(p)
}

// removePeer removes p, its handle and the messages kept for it. Its addresses are
// remembered.
func (t *Table) removePeer(p *peer) {
	t.dropKept(&p.kept, DropEvicted)
	t.voidHandle(p)
	t.peers.remove(p)
	t.remember(p)
	if !p.plain {
		t.pub.changeBy(t.now.Add(latePause))
	}
}

// sweep removes idle peers. It costs O(peers), once per sweepInterval.
func (t *Table) sweep() {
	for _, class := range t.peers.classes() {
		all(class, t.collect)
	}
	if t.mac.refresh(t.now) {
		t.pub.change()
	}
}

// collect removes p if it has been idle for too long.
func (t *Table) collect(p *peer) {
	if t.now.Sub(p.seen) >= p.maxIdle() {
		t.removePeer(p)
	}
}

// maxIdle returns how long an idle p is kept.
func (p *peer) maxIdle() time.Duration {
	if p.used && len(p.ips) > 0 {
		return usedIdle
	}
	return heardIdle
}
