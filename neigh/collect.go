package neigh

// promote notes that the host sends data to p, which puts it into the used
// class. While that is full of busy peers p stays where it is, the last to go.
func (t *Table) promote(p *peer) {
	if !p.used && t.makeRoomUsed() {
		t.peers.use(p)
	}
	t.peers.touch(p, t.now)
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
			t.peers.touch(p, t.now)
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

// forget removes p, its handle, and what is kept for it.
func (t *Table) forget(p *peer) {
	t.dropKept(&p.kept, DropEvicted)
	t.voidHandle(p)
	t.peers.remove(p)
	if !p.plain {
		t.pub.change()
	}
}

// sweep reads the marks of the snapshots, and collects idle peers. Its cost is
// O(peers), once per sweepInterval.
func (t *Table) sweep() {
	all(&t.peers.heard, t.refresh)
	all(&t.peers.used, t.refresh)
	for p := oldest(&t.peers.heard); p != nil && t.now.Sub(p.seen) >= heardIdle; p = oldest(&t.peers.heard) {
		t.forget(p)
	}
	for p := oldest(&t.peers.used); p != nil && t.now.Sub(p.seen) >= usedIdle; p = oldest(&t.peers.used) {
		t.forget(p)
	}
	if t.mac.refresh(t.now) {
		t.pub.change()
	}
}

// refresh takes over the mark of the data path.
func (t *Table) refresh(p *peer) {
	if p.wasSent() {
		t.promote(p)
	}
}
