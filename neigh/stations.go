package neigh

import (
	"container/list"
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"ipoibd/ud/ipoib"
)

// station is a MAC on the host's side, with the IP addresses that it has claimed by ARP, ND or DHCP.
type station struct {
	mac   ipoib.MAC
	ips   []netip.Addr // the latest claim last
	seen  time.Time    // when it last sent
	sent  *atomic.Bool // set by snapshots: it has sent since marks were last read
	place *list.Element

	groups []membership
}

func newStation(m ipoib.MAC, now time.Time) *station {
	return &station{mac: m, seen: now, sent: new(atomic.Bool)}
}

// refresh reads and clears the mark of the data path.
func (s *station) refresh(now time.Time) {
	if s.sent.Load() && s.sent.Swap(false) {
		s.seen = now
	}
}

// stations are the MACs on the host's side: ib0's own, and those behind it, such as the guests of a
// bridge of which ib0 is a port, or macvlan interfaces on ib0. The wire has no MACs, so a frame for
// the host goes to the station that has its IP address.
type stations struct {
	own        *station
	master     ipoib.MAC      // of the bridge of which ib0 is a port; zero: none
	given      []netip.Prefix // the addresses of ib0 and its master, from netlink
	links      []netip.Prefix // the networks of these, without those of link-local addresses
	broadcasts []netip.Addr   // the broadcast addresses of the networks
	router     bool           // the host is an IPv6 router

	byMAC  map[ipoib.MAC]*station  // those behind ib0
	byIP   map[netip.Addr]*station // the addresses of all that are not given
	bare   list.List               // those behind ib0 without an address, the one first that sent longest ago
	named  list.List               // likewise, with an address
	absent map[netip.Addr]time.Time
	gate   *station // behind ib0, an IPv6 router; nil: none

	up      draft[macKey, *atomic.Bool] // for the data path: marks of those behind ib0
	down    draft[ipKey, ipoib.MAC]     // destinations
	changed bool                        // since changes were last taken
	found   []netip.Addr                // addresses learnt since then
}

// init makes s empty. ib0 has no MAC before setOwn.
func (s *stations) init() {
	s.own = newStation(ipoib.MAC{}, time.Time{})
	s.byMAC, s.byIP = make(map[ipoib.MAC]*station), make(map[netip.Addr]*station)
	s.absent = make(map[netip.Addr]time.Time)
}

// is reports whether m is a station.
func (s *stations) is(m ipoib.MAC) bool { return m == s.own.mac || s.byMAC[m] != nil }

// home returns the station of the given addresses: the master's, or else ib0's own.
func (s *stations) home() ipoib.MAC {
	if !s.master.IsZero() {
		return s.master
	}
	return s.own.mac
}

// fallback returns the station for an address that is not on the link, or that no station has answered for.
func (s *stations) fallback(ip netip.Addr) ipoib.MAC {
	if s.gate != nil && ip.Is6() {
		return s.gate.mac
	}
	return s.home()
}

// of returns the station for frames to ip. It returns false if a station may have the address that is not known.
func (s *stations) of(ip netip.Addr) (ipoib.MAC, bool) {
	if st := s.byIP[ip]; st != nil {
		return st.mac, true
	}
	if s.isGiven(ip) {
		return s.home(), true
	}
	if slices.Contains(s.broadcasts, ip) {
		return ipoib.Broadcast, true
	}
	_, absent := s.absent[ip]
	return s.fallback(ip), absent || !onLink(s.links, ip)
}

// dest is of, with the fallback for what is not known.
func (s *stations) dest(ip netip.Addr) ipoib.MAC {
	m, _ := s.of(ip)
	return m
}

// onLink reports whether a station behind ib0 can have ip: it is in one of the host's networks, or the host has none
// of that family.
func onLink(links []netip.Prefix, ip netip.Addr) bool {
	if ip.IsLinkLocalUnicast() {
		return true
	}
	family := false
	for _, p := range links {
		if p.Contains(ip) {
			return true
		}
		family = family || p.Addr().Is4() == ip.Is4()
	}
	return !family
}

// broadcastOf returns the directed broadcast address of an IPv4 network (RFC 919), or false if it has none (RFC 3021).
func broadcastOf(link netip.Prefix) (netip.Addr, bool) {
	if !link.Addr().Is4() || link.Bits() > 30 {
		return netip.Addr{}, false
	}
	ip := link.Addr().As4()
	binary.BigEndian.PutUint32(ip[:], binary.BigEndian.Uint32(ip[:])|(1<<(32-link.Bits())-1))
	return netip.AddrFrom4(ip), true
}

func (s *stations) isGiven(ip netip.Addr) bool {
	return slices.ContainsFunc(s.given, func(p netip.Prefix) bool { return p.Addr() == ip })
}

// has reports whether a station has ip.
func (s *stations) has(ip netip.Addr) bool { return s.byIP[ip] != nil || s.isGiven(ip) }

// none reports whether no address is known.
func (s *stations) none() bool { return len(s.given)+len(s.byIP) == 0 }

// all yields all addresses: those given first, and the others in the order of their stations.
func (s *stations) all() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, p := range s.given {
			if !yield(p.Addr()) {
				return
			}
		}
		for st := range s.each() {
			for _, ip := range st.ips {
				if !yield(ip) {
					return
				}
			}
		}
	}
}

// each yields all stations, ib0's own first. The loop may remove the station.
func (s *stations) each() iter.Seq[*station] {
	return func(yield func(*station) bool) {
		if !yield(s.own) {
			return
		}
		for _, l := range [...]*list.List{&s.named, &s.bare} {
			for e := l.Front(); e != nil; {
				next := e.Next()
				if !yield(e.Value.(*station)) {
					return
				}
				e = next
			}
		}
	}
}

// source returns the source address of a request for target: wish, if a station has it (the source
// of a routed packet would mislead the receiver); otherwise another address of that family;
// otherwise the unspecified one, which makes the request a probe.
func (s *stations) source(target, wish netip.Addr) netip.Addr {
	if wish.Is4() == target.Is4() && s.has(wish) {
		return wish
	}
	for ip := range s.all() {
		if sameKind(ip, target) {
			return ip
		}
	}
	if target.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// setOwn sets ib0's own MAC.
func (s *stations) setOwn(m ipoib.MAC, now time.Time) {
	if st := s.byMAC[m]; st != nil {
		s.remove(st)
	}
	s.own.mac, s.own.seen = m, now
	s.own.sent = new(atomic.Bool)
	s.readdress()
}

// setGiven replaces the addresses from netlink and reports whether any is new.
func (s *stations) setGiven(addrs []netip.Prefix) (added bool) {
	var given []netip.Prefix
	for _, p := range addrs {
		ip := p.Addr().Unmap().WithZone("")
		if len(given) == maxHostAddrs || !isUnicast(ip) {
			continue
		}
		if p = netip.PrefixFrom(ip, p.Bits()); slices.Contains(given, p) {
			continue
		}
		given = append(given, p)
		added = added || !s.has(ip)
	}
	if slices.Equal(given, s.given) {
		return false
	}
	for _, p := range s.given {
		s.undirect(p.Addr())
	}
	for _, ip := range s.broadcasts {
		s.undirect(ip)
	}
	s.given, s.links, s.broadcasts = given, nil, nil
	for _, p := range given {
		s.release(p.Addr())
		if link := p.Masked(); !p.Addr().IsLinkLocalUnicast() && !slices.Contains(s.links, link) {
			s.links = append(s.links, link)
		}
	}
	for _, link := range s.links {
		if ip, ok := broadcastOf(link); ok && !s.isGiven(ip) && !slices.Contains(s.broadcasts, ip) {
			s.release(ip)
			s.broadcasts = append(s.broadcasts, ip)
			s.direct(ip, ipoib.Broadcast)
		}
	}
	s.readdress()
	return added
}

// setMaster records the MAC of ib0's master, or zero.
func (s *stations) setMaster(m ipoib.MAC) {
	if m != s.master {
		s.master = m
		s.readdress()
	}
}

// readdress shows the data path where the addresses are that depend on ib0's MAC, its master's, or the router.
func (s *stations) readdress() {
	for _, ip := range s.own.ips {
		s.direct(ip, s.own.mac)
	}
	for _, p := range s.given {
		s.direct(p.Addr(), s.home())
	}
	for ip := range s.absent {
		s.direct(ip, s.fallback(ip))
	}
	s.changed = true
}

// direct shows the data path the destination of an address; undirect hides it.
func (s *stations) direct(ip netip.Addr, m ipoib.MAC) {
	k := keyOfIP(ip)
	s.down.shard(k.shardOf())[k] = m
	s.changed = true
}

func (s *stations) undirect(ip netip.Addr) {
	k := keyOfIP(ip)
	delete(s.down.shard(k.shardOf()), k)
	s.changed = true
}

// admit reports whether a frame from src, a unicast address, may pass. It learns src as a station, if there is
// room: one without an address makes room, or one that has been silent for stationAge.
func (s *stations) admit(src ipoib.MAC, now time.Time) bool {
	if src == s.own.mac {
		s.own.seen = now
		return true
	}
	if st := s.byMAC[src]; st != nil {
		s.touch(st, now)
		return true
	}
	if len(s.byMAC) >= maxStations && !s.makeRoom(now) {
		return false
	}
	st := newStation(src, now)
	s.byMAC[src] = st
	st.place = s.bare.PushBack(st)
	key := keyOf(src)
	s.up.shard(key.shardOf())[key] = st.sent
	s.changed = true
	return true
}

// list returns the list that st is in.
func (s *stations) list(st *station) *list.List {
	if len(st.ips) > 0 {
		return &s.named
	}
	return &s.bare
}

func (s *stations) touch(st *station, now time.Time) {
	st.seen = now
	if st != s.own {
		s.list(st).MoveToBack(st.place)
	}
}

// makeRoom removes a station, if it may.
func (s *stations) makeRoom(now time.Time) bool {
	for range maxPromotions { // those that the data path has seen in the meantime stay
		e := s.bare.Front()
		if e == nil {
			e = s.named.Front()
		}
		st := e.Value.(*station)
		if st.sent.Load() {
			st.refresh(now)
			s.touch(st, now)
			continue
		}
		if len(st.ips) > 0 && now.Sub(st.seen) < stationAge {
			return false
		}
		s.remove(st)
		return true
	}
	return false
}

// remove forgets a station behind ib0, and its addresses.
func (s *stations) remove(st *station) {
	for len(st.ips) > 0 {
		s.release(st.ips[0])
	}
	if s.gate == st {
		s.gate = nil
		s.readdress()
	}
	s.bare.Remove(st.place)
	delete(s.byMAC, st.mac)
	key := keyOf(st.mac)
	delete(s.up.shard(key.shardOf()), key)
	s.changed = true
}

// clear forgets all stations behind ib0, and what they have claimed.
func (s *stations) clear() {
	for st := range s.each() {
		for len(st.ips) > 0 {
			s.release(st.ips[0])
		}
		if st != s.own {
			s.remove(st)
		}
	}
	s.own.groups = nil
	for ip := range s.absent {
		s.undirect(ip)
	}
	clear(s.absent)
	s.router = false
}

// full reports whether there is no room for another MAC or address behind ib0.
func (s *stations) full() bool { return len(s.byMAC) >= maxStations || len(s.byIP) >= maxStationIPs }

// claim records that a station has claimed ip. The latest claim wins, but for the given addresses. It returns false if
// there is no room.
func (s *stations) claim(m ipoib.MAC, ip netip.Addr) bool {
	st := s.byMAC[m]
	if m == s.own.mac {
		st = s.own
	}
	if st == nil || s.isGiven(ip) || slices.Contains(s.broadcasts, ip) || s.byIP[ip] == st {
		return true
	}
	s.release(ip)
	if len(s.byIP) >= maxStationIPs {
		return false
	}
	if len(st.ips) >= maxIPsPerStation {
		s.release(st.ips[0])
	}
	if st != s.own && len(st.ips) == 0 {
		s.bare.Remove(st.place)
		st.place = s.named.PushBack(st)
	}
	st.ips = append(st.ips, ip)
	s.byIP[ip] = st
	delete(s.absent, ip)
	s.direct(ip, m)
	s.found = append(s.found, ip)
	return true
}

// release takes an address from the station that has claimed it, if there is one.
func (s *stations) release(ip netip.Addr) {
	if _, ok := s.absent[ip]; ok {
		delete(s.absent, ip)
		s.undirect(ip)
	}
	st := s.byIP[ip]
	if st == nil {
		return
	}
	delete(s.byIP, ip)
	st.ips = slices.DeleteFunc(st.ips, func(other netip.Addr) bool { return other == ip })
	if st != s.own && len(st.ips) == 0 {
		s.named.Remove(st.place)
		st.place = s.bare.PushBack(st)
	}
	s.undirect(ip)
}

// lacks records that no station has answered for ip. For a while its frames go to the fallback.
func (s *stations) lacks(ip netip.Addr, now time.Time) {
	if _, known := s.of(ip); !known && len(s.absent) < maxAbsent {
		s.absent[ip] = now.Add(absentFor)
		s.direct(ip, s.fallback(ip))
	}
}

// routes records that a station is an IPv6 router. One that only says so in neighbour advertisements, as each machine
// with containers does, is one if there is no other.
func (s *stations) routes(m ipoib.MAC, advert bool) {
	switch st := s.byMAC[m]; {
	case m == s.home():
		s.router = true
	case st != nil && st != s.gate && (advert || s.gate == nil && !s.router):
		s.gate = st
		s.readdress()
	}
}

// isRouter reports whether an address is that of an IPv6 router.
func (s *stations) isRouter(ip netip.Addr) bool {
	st := s.byIP[ip]
	return s.router && (st == nil || st.mac == s.home()) || st != nil && st == s.gate
}

// sweep forgets the stations that have been silent for stationAge, and asks again for absent addresses.
func (s *stations) sweep(now time.Time) {
	for st := range s.each() {
		if st.refresh(now); st != s.own && now.Sub(st.seen) >= stationAge {
			s.remove(st)
		}
	}
	for ip, until := range s.absent {
		if !until.After(now) {
			delete(s.absent, ip)
			s.undirect(ip)
		}
	}
}

// idle reports whether sweep has nothing to do.
func (s *stations) idle() bool { return len(s.byMAC)+len(s.absent) == 0 }

// ipKey is an IP address as a key: lookups of it are faster than of a netip.Addr, whose zone is a pointer.
type ipKey [16]byte

func keyOfIP(ip netip.Addr) ipKey { return ip.As16() }

// shardOf returns the shard of an address. The addresses of a network differ in their last bytes.
func (k *ipKey) shardOf() uint { return (uint(k[15]) | uint(k[14])<<8 ^ uint(k[11])) % numShards }
