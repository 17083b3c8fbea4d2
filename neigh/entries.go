package neigh

import (
	"container/list"
	"iter"
	"net/netip"
	"slices"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// entries holds peers, indexed by their addresses, in two classes. Each peer has
// one endpoint and one MAC, both unique, and every bound IP belongs to one
// peer. A queue pair may have several endpoints, if its port has several GIDs: byLID
// has the one that was claimed last.
type entries struct {
	byEndpoint  map[endpoint]*peer
	byLID       map[hca.UDSource]*peer // by keys with a LID; empty on RoCE
	byMAC       map[ipoib.MAC]*peer
	byIP        map[netip.Addr]*peer
	byGID       map[hca.GID][]*peer // at most maxPeersPerGID each, in the order of their addition
	heard, used list.List           // of *peer, the least recently seen first
}

func newEntries() entries {
	return entries{
		byEndpoint: make(map[endpoint]*peer),
		byLID:      make(map[hca.UDSource]*peer),
		byMAC:      make(map[ipoib.MAC]*peer),
		byIP:       make(map[netip.Addr]*peer),
		byGID:      make(map[hca.GID][]*peer),
	}
}

// add adds p as the most recently seen of its class. No other peer may have its
// endpoint, its MAC or one of its IP addresses.
func (s *entries) add(p *peer) {
	s.byEndpoint[p.endpoint] = p
	s.byGID[p.gid] = append(s.byGID[p.gid], p)
	s.setMAC(p, p.mac)
	for _, ip := range p.ips {
		s.byIP[ip] = p
	}
	p.place = s.class(p).PushBack(p)
}

// remove removes p. The fields of p stay as they are.
func (s *entries) remove(p *peer) {
	for _, ip := range p.ips {
		delete(s.byIP, ip)
	}
	delete(s.byEndpoint, p.endpoint)
	s.setLID(p, 0)
	delete(s.byMAC, p.mac)
	there := s.byGID[p.gid]
	i := slices.Index(there, p)
	if there = slices.Delete(there, i, i+1); len(there) > 0 {
		s.byGID[p.gid] = there
	} else {
		delete(s.byGID, p.gid)
	}
	s.class(p).Remove(p.place)
}

// class returns the list of p's class.
func (s *entries) class(p *peer) *list.List {
	if p.used {
		return &s.used
	}
	return &s.heard
}

// touch notes that p was seen.
func (s *entries) touch(p *peer, now time.Time) {
	p.seen = now
	s.class(p).MoveToBack(p.place)
}

// use moves p into the used class.
func (s *entries) use(p *peer) {
	s.class(p).Remove(p.place)
	p.used = true
	p.place = s.used.PushBack(p)
}

// setQPN moves p to another, unused QPN of its GID. It unbinds p's addresses,
// because they may still be in use at the old QPN.
func (s *entries) setQPN(p *peer, qpn hca.QPN) {
	for len(p.ips) > 0 {
		s.unbind(p.ips[0])
	}
	delete(s.byEndpoint, p.endpoint)
	s.setLID(p, 0)
	p.qpn = qpn
	s.byEndpoint[p.endpoint] = p
}

// setLID indexes p by a LID, or by none if lid is 0, in place of the peer that was there, which it returns; nil: there
// was none.
func (s *entries) setLID(p *peer, lid hca.LID) (former *peer) {
	if p.lid != 0 {
		delete(s.byLID, p.byLID())
	}
	if p.lid = lid; lid == 0 {
		return nil
	}
	key := p.byLID()
	if former = s.byLID[key]; former != nil {
		former.lid = 0
	}
	s.byLID[key] = p
	return former
}

// setMAC gives p a MAC, which must be free.
func (s *entries) setMAC(p *peer, mac ipoib.MAC) {
	delete(s.byMAC, p.mac)
	p.mac, p.plain = mac, mac == plainMAC(p.gid)
	s.byMAC[mac] = p
}

// bind binds ip to p alone. A peer with too many addresses loses the one that
// it claimed first.
func (s *entries) bind(ip netip.Addr, p *peer) {
	s.unbind(ip)
	bound := maxIPsHeard
	switch {
	case p.used && len(s.byIP) < maxIPs:
		bound = maxIPsUsed
	case p.used:
		bound = maxIPsFew
	}
	for len(p.ips) >= bound {
		s.unbind(p.ips[0])
	}
	p.ips = append(p.ips, ip)
	p.claimed = true
	s.byIP[ip] = p
}

// unbind removes the binding of ip, if there is one.
func (s *entries) unbind(ip netip.Addr) {
	p := s.byIP[ip]
	if p == nil {
		return
	}
	delete(s.byIP, ip)
	i := slices.Index(p.ips, ip)
	p.ips = slices.Delete(p.ips, i, i+1)
}

// oldest returns the least recently seen peer of a class, or nil if it is
// empty.
func oldest(class *list.List) *peer {
	if e := class.Front(); e != nil {
		return e.Value.(*peer)
	}
	return nil
}

// all yields each peer, those of a class least recently seen first. The loop may move or remove the peer.
func (s *entries) all() iter.Seq[*peer] {
	return func(yield func(*peer) bool) {
		for _, class := range [...]*list.List{&s.heard, &s.used} {
			for e := class.Front(); e != nil; {
				next := e.Next()
				if !yield(e.Value.(*peer)) {
					return
				}
				e = next
			}
		}
	}
}
