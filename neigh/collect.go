package neigh

import (
	"slices"

	"ipoibd/hca"
)

// send sends a message to p, now or when its handle is ready.
func (t *roster) send(p *peer, o outgoing) {
	if !o.control {
		t.promote(p)
	}
	t.handles.send(p, o)
}

// promote notes that the host sends data to p and moves p to the used class. If
// that class is full of busy peers, p stays in the heard class, as the last to
// be evicted.
func (t *roster) promote(p *peer) {
	if !p.used && t.makeRoomUsed() {
		t.peers.use(p)
		if p.shown.source {
			t.view.show(p)
			t.view.changeLate()
		}
	}
	t.peers.touch(p, t.step.now)
	p.sentAt = t.step.now
	t.silent.sent(p)
}

// makeRoomAt makes room for one more peer at a GID. It evicts the peer seen longest
// ago, preferring peers that the host never sent data to.
func (t *roster) makeRoomAt(gid hca.GID) {
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
func (t *roster) makeRoomHeard() {
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
func (t *roster) makeRoomUsed() bool {
	if t.peers.used.Len() < t.conf.MaxPeers-t.conf.MaxHeard {
		return true
	}
	for range maxPromotions {
		p := oldest(&t.peers.used)
		if p.wasSent() {
			t.promote(p)
			continue
		}
		if t.step.now.Sub(p.seen) < pressureIdle {
			return false
		}
		t.evict(p)
		return true
	}
	return false
}

func (t *roster) evict(p *peer) {
	t.step.stats.Evicted++
	t.removePeer(p)
}

// removePeer removes p, its handle and the messages kept for it. Its addresses are
// remembered.
func (t *roster) removePeer(p *peer) {
	t.kept.drop(&p.kept, DropEvicted)
	t.handles.void(p)
	t.peers.remove(p)
	t.view.hide(p)
	t.remember(p)
	if !p.plain {
		t.view.changeLate()
	}
}

// sweep removes idle peers. It costs O(peers), once per sweepInterval.
func (t *roster) sweep() {
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			idle := heardIdle
			if p.used && len(p.ips) > 0 {
				idle = usedIdle
			}
			if t.step.now.Sub(p.seen) >= idle {
				t.removePeer(p)
			}
		})
	}
	if t.host.mac.refresh(t.step.now) {
		t.view.change()
	}
}

// readMarks reads the marks of the data path. It costs O(peers), once per
// markInterval.
func (t *roster) readMarks() {
	for _, class := range t.peers.classes() {
		all(class, func(p *peer) {
			if p.wasSent() {
				t.promote(p)
			}
			if p.wasHeard() {
				t.silent.received(p)
			}
		})
	}
}

// remember keeps the addresses of p, which has been removed. The host may still have p's
// MAC in its cache: Linux keeps entries forever while there are fewer than gc_thresh1
// (128). Therefore no other peer gets that MAC, a frame to it is resolved by p's IP
// addresses, and p gets its MAC back if it returns.
//
// The bounds are the table's. The peer that was removed first makes room: within
// its class, so that heard peers do not displace used ones, and within its GID, where
// heard peers go first.
//
// Heard peers are remembered too: a peer's MAC enters the host's cache as soon as the
// peer resolves the host's address or advertises itself as a router.
func (t *roster) remember(p *peer) {
	p.used = p.busy()
	if older := t.past.byEndpoint[p.endpoint]; older != nil {
		t.past.remove(older)
	}
	for _, ip := range p.ips {
		t.past.unbind(ip)
	}
	if there := t.past.byGID[p.gid]; len(there) >= maxPeersPerGID {
		heard := slices.IndexFunc(there, func(p *peer) bool { return !p.used })
		t.past.remove(there[max(heard, 0)])
	}
	most := t.conf.MaxHeard
	if p.used {
		most = t.conf.MaxPeers - t.conf.MaxHeard
	}
	if class := t.past.class(p); class.Len() >= most {
		t.past.remove(oldest(class))
	}
	t.past.add(p)
}
