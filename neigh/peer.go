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

// endpoint identifies a queue pair on the fabric.
type endpoint struct {
	gid hca.GID
	qpn hca.QPN
}

func endpointOf(a ipoib.Addr) endpoint { return endpoint{a.GID(), a.QPN()} }

func (e endpoint) addr() ipoib.Addr { return ipoib.NewAddr(e.qpn, e.gid) }

// valid reports whether a UD sender can have this endpoint (IBA 1.4, 3.5.10 and
// 4.1.1).
func (e endpoint) valid() bool {
	return !e.gid.IsZero() && !e.gid.IsMulticast() && e.qpn > hca.QPNGSI && e.qpn < hca.QPNMulticast
}

// peer is an interface on the fabric, which the host sees as a MAC.
type peer struct {
	endpoint
	mac       ipoib.MAC
	plain     bool         // mac is plainMAC of the GID
	ips       []netip.Addr // bound to it, the latest claim last
	claimed   bool         // it has ever claimed an address
	used      bool         // the host has sent data to it
	proven    bool         // it has ever sent data
	seen      time.Time    // when data was last sent to it, or it was last heard
	sent      traffic      // data sent to it
	heard     traffic      // data received from it
	sentAt    time.Time    // when data was last sent to it; zero: never
	heardAt   time.Time    // when data, ARP or ND was last received from it; zero: never
	place     *list.Element
	handle    handle
	kept      queue     // messages
	corrected time.Time // time of the last correction sent to the host
	silence   silence
	shown     shown
}

// traffic is data in one direction, as the data path has seen it.
type traffic struct {
	mark  atomic.Bool   // set by snapshots: there was some since marks were last read
	bytes atomic.Uint64 // of IP packets
}

// wasSent reports whether the data path has sent to p since the last call.
func (p *peer) wasSent() bool { return p.sent.mark.Load() && p.sent.mark.Swap(false) }

// busy reports whether the host sends data to p.
func (p *peer) busy() bool { return p.used || p.sent.mark.Load() }

// wasHeard reports whether the data path has received from p since the last
// call.
func (p *peer) wasHeard() bool { return p.heard.mark.Load() && p.heard.mark.Swap(false) }

// peers holds peers, indexed by their addresses, in two classes. Each peer has
// one endpoint and one MAC, both unique, and every bound IP belongs to one
// peer.
type peers struct {
	byEndpoint  map[endpoint]*peer
	byMAC       map[ipoib.MAC]*peer
	byIP        map[netip.Addr]*peer
	byGID       map[hca.GID][]*peer // at most maxPeersPerGID each, in the order of their addition
	heard, used list.List           // of *peer, the least recently seen first
}

func (s *peers) init() {
	s.byEndpoint = make(map[endpoint]*peer)
	s.byMAC = make(map[ipoib.MAC]*peer)
	s.byIP = make(map[netip.Addr]*peer)
	s.byGID = make(map[hca.GID][]*peer)
}

// add adds p as the most recently seen of its class. No other peer may have its
// endpoint, its MAC or one of its IP addresses.
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

// class returns the list of p's class.
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

// setQPN moves p to another, unused QPN of its GID. It unbinds p's addresses,
// because they may still be in use at the old QPN.
func (s *peers) setQPN(p *peer, qpn hca.QPN) {
	for len(p.ips) > 0 {
		s.unbind(p.ips[0])
	}
	delete(s.byEndpoint, p.endpoint)
	p.qpn = qpn
	s.byEndpoint[p.endpoint] = p
}

// setMAC gives p a MAC, which must be free.
func (s *peers) setMAC(p *peer, mac ipoib.MAC) {
	delete(s.byMAC, p.mac)
	p.mac, p.plain = mac, mac == plainMAC(p.gid)
	s.byMAC[mac] = p
}

// bind binds ip to p alone. A peer with too many addresses loses the one that
// it claimed first.
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

// unbind removes the binding of ip, if there is one.
func (s *peers) unbind(ip netip.Addr) {
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

// all calls f for each peer of a class, oldest first; f may move or remove its
// argument.
func all(class *list.List, f func(*peer)) {
	for e := class.Front(); e != nil; {
		next := e.Next()
		f(e.Value.(*peer))
		e = next
	}
}
