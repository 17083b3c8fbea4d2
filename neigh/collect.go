package neigh

import (
	"slices"

	"ipoibd/hca"
)

// promote notes that the host sends data to p and moves p to the used class. If
// that class is full of busy peers, p stays in the heard class, as the last to
// be evicted.
func (s *peers) promote(p *peer) {
	if !p.used && s.makeRoomUsed() {
		s.live.use(p)
		if p.shown.source {
			s.view.show(p)
			s.view.changeLate()
		}
	}
	s.live.touch(p, s.step.now)
	p.sentAt = s.step.now
	s.silent.sent(p)
}

// makeRoomAt makes room for one more peer at a GID. It evicts the peer seen longest
// ago, preferring peers that the host never sent data to.
func (s *peers) makeRoomAt(gid hca.GID) {
	there := s.live.byGID[gid]
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
	s.evict(first)
}

// makeRoomHeard makes room for one peer in the heard class. It promotes peers
// that the data path has sent to in the meantime.
func (s *peers) makeRoomHeard() {
	for passed := 0; s.live.heard.Len() >= s.conf.MaxHeard; passed++ {
		p := oldest(&s.live.heard)
		if passed < maxPromotions && p.sent.seen() {
			s.promote(p)
			continue
		}
		s.evict(p)
	}
}

// makeRoomUsed makes room for one peer in the used class, if it can.
func (s *peers) makeRoomUsed() bool {
	if s.live.used.Len() < s.conf.most(true) {
		return true
	}
	for range maxPromotions {
		p := oldest(&s.live.used)
		if p.sent.seen() {
			s.promote(p)
			continue
		}
		if s.step.now.Sub(p.seen) < pressureIdle {
			return false
		}
		s.evict(p)
		return true
	}
	return false
}

func (s *peers) evict(p *peer) {
	s.step.stats.Evicted++
	s.remove(p)
}

// remove removes p, its handle and the messages kept for it. Its addresses are
// remembered.
func (s *peers) remove(p *peer) {
	s.doubts.stop(&p.doubt.alarm)
	s.step.dropKept(&p.kept, DropEvicted)
	s.handles.void(p)
	s.live.remove(p)
	s.view.hide(p)
	s.remember(p)
	if !p.plain {
		s.view.changeLate()
	}
}

// sweep removes idle peers. It costs O(peers), once per sweepInterval.
func (s *peers) sweep() {
	for p := range s.live.all() {
		idle := heardIdle
		if p.used && len(p.ips) > 0 {
			idle = usedIdle
		}
		if s.step.now.Sub(p.seen) >= idle {
			s.remove(p)
		}
	}
}

// readMarks reads the marks of the data path. It costs O(peers), once per
// markInterval.
func (s *peers) readMarks() {
	for p := range s.live.all() {
		if p.sent.seen() {
			s.promote(p)
		}
		if p.heard.seen() {
			s.silent.received(p)
		}
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
func (s *peers) remember(p *peer) {
	p.used = p.busy()
	if older := s.past.byEndpoint[p.endpoint]; older != nil {
		s.past.remove(older)
	}
	for _, ip := range p.ips {
		s.past.unbind(ip)
	}
	if there := s.past.byGID[p.gid]; len(there) >= maxPeersPerGID {
		heard := slices.IndexFunc(there, func(p *peer) bool { return !p.used })
		s.past.remove(there[max(heard, 0)])
	}
	if class := s.past.class(p); class.Len() >= s.conf.most(p.used) {
		s.past.remove(oldest(class))
	}
	s.past.add(p)
}
