package neigh

import (
	"container/list"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/ud/ipoib"
)

// endpoint names a queue pair of the fabric.
type endpoint struct {
	gid hca.GID
	qpn hca.QPN
}

func endpointOf(a ipoib.Addr) endpoint { return endpoint{a.GID(), a.QPN()} }

func (e endpoint) addr() ipoib.Addr { return ipoib.NewAddr(e.qpn, e.gid) }

// valid reports whether a UD sender can be there (IBA 1.4, 3.5.10 and 4.1.1).
func (e endpoint) valid() bool {
	return !e.gid.IsZero() && !e.gid.IsMulticast() && e.qpn > hca.QPNGSI && e.qpn < hca.QPNMulticast
}

// peer is an interface on the fabric, as the host sees it: a MAC.
type peer struct {
	endpoint
	mac       ipoib.MAC
	plain     bool         // mac is the plain one of the GID
	ips       []netip.Addr // bound to it, the latest claim last
	claimed   bool         // it has claimed an address at some time
	used      bool         // the host sent data to it
	proven    bool         // it has sent data at some time
	seen      time.Time    // last sent data to, or last heard
	sent      atomic.Bool  // set by snapshots: sent data to since the last look
	heard     atomic.Bool  // set by snapshots: data received from it since the last look
	place     *list.Element
	handle    handle
	kept      queue     // messages
	corrected time.Time // when the host was last told of its MAC
	silence   silence
}

// wasSent returns whether the data path sent to p since the last call.
func (p *peer) wasSent() bool { return p.sent.Load() && p.sent.Swap(false) }

// busy reports whether the host sends data to p.
func (p *peer) busy() bool { return p.used || p.sent.Load() }

// wasHeard returns whether the data path received from p since the last call.
func (p *peer) wasHeard() bool { return p.heard.Load() && p.heard.Swap(false) }

// peers are the peers by each of their names, in two classes. Each peer has one
// endpoint and one MAC, both unique, and every bound IP belongs to one peer.
type peers struct {
	byEndpoint  map[endpoint]*peer
	byMAC       map[ipoib.MAC]*peer
	byIP        map[netip.Addr]*peer
	byGID       map[hca.GID][]*peer // at most maxPeersPerGID each, the one added first in front
	heard, used list.List           // of *peer, the one seen longest ago in front
}

func (s *peers) init() {
	s.byEndpoint = make(map[endpoint]*peer)
	s.byMAC = make(map[ipoib.MAC]*peer)
	s.byIP = make(map[netip.Addr]*peer)
	s.byGID = make(map[hca.GID][]*peer)
}

// add adds p, the latest of its class. No peer here has its endpoint, its MAC, or one of
// its addresses.
func (s *peers) add(p *peer) {
	s.byEndpoint[p.endpoint] = p
	s.byGID[p.gid] = append(s.byGID[p.gid], p)
	s.setMAC(p, p.mac)
	for _, ip := range p.ips {
		s.byIP[ip] = p
	}
	p.place = s.class(p).PushBack(p)
}

// remove removes p. The fields of p stay as they are.
func (s *peers) remove(p *peer) {
	for _, ip := range p.ips {
		delete(s.byIP, ip)
	}
	delete(s.byEndpoint, p.endpoint)
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

// class returns the list that p is in.
func (s *peers) class(p *peer) *list.List {
	if p.used {
		return &s.used
	}
	return &s.heard
}

func (s *peers) classes() [2]*list.List { return [2]*list.List{&s.heard, &s.used} }

// touch notes that p was seen.
func (s *peers) touch(p *peer, now time.Time) {
	p.seen = now
	s.class(p).MoveToBack(p.place)
}

// use moves p into the used class.
func (s *peers) use(p *peer) {
	s.class(p).Remove(p.place)
	p.used = true
	p.place = s.used.PushBack(p)
}

// setQPN moves p to another QPN of its GID, where no peer is. Addresses bound to
// the old QPN are forgotten: they may live on there.
func (s *peers) setQPN(p *peer, qpn hca.QPN) {
	for len(p.ips) > 0 {
		s.unbind(p.ips[0])
	}
	delete(s.byEndpoint, p.endpoint)
	p.qpn = qpn
	s.byEndpoint[p.endpoint] = p
}

// setMAC gives p a MAC, which is free.
func (s *peers) setMAC(p *peer, mac ipoib.MAC) {
	delete(s.byMAC, p.mac)
	p.mac, p.plain = mac, mac == plainMAC(p.gid)
	s.byMAC[mac] = p
}

// bind notes that ip is at p, and nowhere else. A peer that has too many loses
// the one claimed longest ago.
func (s *peers) bind(ip netip.Addr, p *peer) {
	s.unbind(ip)
	bound := maxIPsHeard
	if p.used {
		bound = maxIPsUsed
	}
	for len(p.ips) >= bound {
		s.unbind(p.ips[0])
	}
	p.ips = append(p.ips, ip)
	p.claimed = true
	s.byIP[ip] = p
}

// unbind forgets where ip is; harmless when nobody has it.
func (s *peers) unbind(ip netip.Addr) {
	p := s.byIP[ip]
	if p == nil {
		return
	}
	delete(s.byIP, ip)
	i := slices.Index(p.ips, ip)
	p.ips = slices.Delete(p.ips, i, i+1)
}

// oldest returns the front of a class, nil when it is empty.
func oldest(class *list.List) *peer {
	if e := class.Front(); e != nil {
		return e.Value.(*peer)
	}
	return nil
}

// all calls f for each peer of a class, oldest first; f may move or remove its
// argument.
func all(class *list.List, f func(*peer)) {
	for e := class.Front(); e != nil; {
		next := e.Next()
		f(e.Value.(*peer))
		e = next
	}
}
