package neigh

import (
	"iter"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"ipoibd/ud/ipoib"
)

// station is a MAC on the host's side, with its IP addresses. The wire has no MACs, so a frame for the host goes to the
// station that has its IP address.
type station struct {
	mac    ipoib.MAC
	ips    []netip.Addr // the latest claim last
	router routerKind
	groups []membership
	seen   time.Time    // when it last sent
	sent   *atomic.Bool // set by snapshots: it has sent since marks were last read
}

func newStation(m ipoib.MAC) *station { return &station{mac: m, sent: new(atomic.Bool)} }

// refresh reads and clears the mark of the data path.
func (s *station) refresh(now time.Time) {
	if s.sent.Load() && s.sent.Swap(false) {
		s.seen = now
	}
}

// stations are the MACs on the host's side: ib0's own, and those behind it, such as the guests of a
// bridge that ib0 is a port of, or macvlan interfaces on ib0. They claim addresses by ARP, ND or DHCP.
type stations struct {
	master ipoib.MAC              // of the bridge that ib0 is a port of; zero: no bridge
	home   *station               // the addresses from netlink, at the MAC of the master, or else ib0's
	own    *station               // ib0's MAC, and what it has claimed beyond these
	list   []*station             // own, and those behind ib0 in the order in which they were first seen
	byMAC  map[ipoib.MAC]*station // the same

	links  networks                // of home
	byIP   map[netip.Addr]*station // all
	absent map[netip.Addr]absence
	gate   *station // the IPv6 router; nil: home

	marks   draft[macKey, *atomic.Bool] // for the data path: of those behind ib0
	places  draft[ipKey, ipoib.MAC]     // destinations of byIP and absent; zero: the fallback
	changed bool                        // since changes were last taken

	regrouped bool // the same, of what Table.Groups returns
}

// absence is that no station has an address.
type absence struct {
	until time.Time
	last  ipoib.MAC // the station from which a peer has taken it; zero: none has answered
}

// init makes s empty. ib0 has no MAC before setOwn.
func (s *stations) init() {
	s.home, s.own = newStation(ipoib.MAC{}), newStation(ipoib.MAC{})
	s.list, s.byMAC = []*station{s.own}, map[ipoib.MAC]*station{{}: s.own}
	s.byIP = make(map[netip.Addr]*station)
	s.absent = make(map[netip.Addr]absence)
}

// behind returns the stations behind ib0.
func (s *stations) behind() []*station { return s.list[1:] }

// is reports whether m is a station.
func (s *stations) is(m ipoib.MAC) bool { return s.byMAC[m] != nil }

// has reports whether a station has ip.
func (s *stations) has(ip netip.Addr) bool { return s.byIP[ip] != nil }

// fallback returns the station for an address that is not on the link, or that no station has answered for.
func (s *stations) fallback(ip netip.Addr) ipoib.MAC {
	if s.gate != nil && ip.Is6() {
		return s.gate.mac
	}
	return s.home.mac
}

// of returns the destination of frames to ip. It returns false if a station may have the address that is not known.
func (s *stations) of(ip netip.Addr) (ipoib.MAC, bool) {
	m, known := s.place(ip)
	local, all := s.links.find(ip)
	switch {
	case !m.IsZero():
		return m, true
	case all:
		return ipoib.Broadcast, true
	}
	return s.fallback(ip), known || !local
}

// place returns what the data path is shown about an address.
func (s *stations) place(ip netip.Addr) (m ipoib.MAC, ok bool) {
	if st := s.byIP[ip]; st != nil {
		return st.mac, true
	}
	a, ok := s.absent[ip]
	return a.last, ok
}

// dest is of, with the fallback for what is not known.
func (s *stations) dest(ip netip.Addr) ipoib.MAC {
	m, _ := s.of(ip)
	return m
}

// to is of for packets to any address, or sent to a group.
func (s *stations) to(ip netip.Addr, group bool) (ipoib.MAC, bool) {
	switch {
	case ip.IsMulticast():
		return ipoib.GroupMAC(ip), true
	case group || !isUnicast(ip):
		return ipoib.Broadcast, true
	}
	return s.of(ip)
}

// all yields the addresses of all stations: those of home first, and the others in the order of their stations.
func (s *stations) all() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, st := range slices.Concat([]*station{s.home}, s.list) {
			for _, ip := range st.ips {
				if !yield(ip) {
					return
				}
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
	if st := s.byMAC[m]; st != nil && st != s.own { // a former process has handed it over
		s.remove(st)
		s.own.router = max(s.own.router, st.router)
	}
	delete(s.byMAC, s.own.mac)
	s.byMAC[m] = s.own
	s.own.mac, s.own.seen, s.own.sent = m, now, new(atomic.Bool)
	s.rehome(now)
}

// setMaster records the MAC of ib0's master, or zero.
func (s *stations) setMaster(m ipoib.MAC, now time.Time) {
	s.master = m
	s.rehome(now)
}

// rehome shows the data path where ib0's addresses are, and its master's. If the host was a router at its former MAC, it is
// one at the new MAC.
func (s *stations) rehome(now time.Time) {
	s.regrouped = true
	former := s.byMAC[s.home.mac]
	if s.home.mac = s.master; s.master.IsZero() {
		s.home.mac = s.own.mac
	}
	if former.kind() != notRouter && former.mac != s.home.mac && s.admit(s.home.mac, now) {
		st := s.byMAC[s.home.mac]
		st.router, former.router = max(st.router, former.router), notRouter
	}
	for _, ip := range slices.Concat(s.home.ips, s.own.ips) {
		s.show(ip)
	}
	s.chooseGate()
}

// setGiven replaces the addresses of home and reports whether any is new.
func (s *stations) setGiven(addrs []netip.Prefix) (added bool) {
	ips, links := networksOf(addrs)
	if slices.Equal(ips, s.home.ips) && slices.Equal(links, s.links) {
		return false
	}
	added = slices.ContainsFunc(ips, func(ip netip.Addr) bool { return !s.has(ip) })
	s.links = links
	s.vacateAll(s.home)
	for _, ip := range ips {
		s.assign(s.home, ip)
	}
	return added
}

// assign gives an address to a station, and takes it from its former holder.
func (s *stations) assign(st *station, ip netip.Addr) {
	s.vacate(ip)
	st.ips = append(st.ips, ip)
	s.byIP[ip] = st
	s.regrouped = s.regrouped || ip.Is6()
	s.show(ip)
}

// vacate takes an address from its holder, and from the absent ones.
func (s *stations) vacate(ip netip.Addr) {
	if _, known := s.place(ip); !known {
		return
	}
	if st := s.byIP[ip]; st != nil {
		st.ips = slices.DeleteFunc(st.ips, func(other netip.Addr) bool { return other == ip })
		s.regrouped = s.regrouped || ip.Is6()
	}
	delete(s.byIP, ip)
	delete(s.absent, ip)
	s.show(ip)
}

func (s *stations) vacateAll(st *station) {
	for len(st.ips) > 0 {
		s.vacate(st.ips[0])
	}
}

// show shows the data path where an address is. It must be called when that has changed.
func (s *stations) show(ip netip.Addr) {
	k := keyOfIP(ip)
	if m, ok := s.place(ip); ok {
		s.places.shard(k.shardOf())[k] = m
	} else {
		delete(s.places.shard(k.shardOf()), k)
	}
	s.changed = true
}

// admit reports whether a frame from src, a unicast address, may pass. It learns src as a station, if there is
// room. There always is for the host itself, in the name of its bridge.
func (s *stations) admit(src ipoib.MAC, now time.Time) bool {
	st := s.byMAC[src]
	if st == nil {
		if len(s.behind()) >= maxStations && src != s.master && !s.makeRoom(now) {
			return false
		}
		st = newStation(src)
		s.list, s.byMAC[src] = append(s.list, st), st
		key := keyOf(src)
		s.marks.shard(key.shardOf())[key] = st.sent
		s.changed = true
	}
	st.seen = now
	return true
}

// makeRoom removes the station that has been silent for longest, one without an address first. One with an address
// stays for stationAge. The bridge stays, and what the data path has seen in the meantime.
func (s *stations) makeRoom(now time.Time) bool {
	var victim *station
	for _, st := range s.behind() {
		switch {
		case st.mac == s.master:
		case st.sent.Load():
			st.refresh(now)
		case victim == nil || st.before(victim):
			victim = st
		}
	}
	if victim == nil || len(victim.ips) > 0 && now.Sub(victim.seen) < stationAge {
		return false
	}
	s.remove(victim)
	return true
}

// before reports whether s is to be removed before other.
func (s *station) before(other *station) bool {
	if bare := len(s.ips) == 0; bare != (len(other.ips) == 0) {
		return bare
	}
	return s.seen.Before(other.seen)
}

// remove forgets a station behind ib0, and its addresses.
func (s *stations) remove(st *station) {
	s.vacateAll(st)
	s.regrouped = s.regrouped || len(st.groups) > 0
	s.list = slices.DeleteFunc(s.list, func(other *station) bool { return other == st })
	delete(s.byMAC, st.mac)
	key := keyOf(st.mac)
	delete(s.marks.shard(key.shardOf()), key)
	if st.router != notRouter {
		s.chooseGate()
	}
	s.changed = true
}

// clear forgets all stations behind ib0, and what they have claimed.
func (s *stations) clear() {
	for _, st := range slices.Clone(s.behind()) {
		s.remove(st)
	}
	s.vacateAll(s.own)
	s.own.groups, s.regrouped = nil, true
	for ip := range s.absent {
		s.vacate(ip)
	}
}

// full reports whether there is no room for another MAC or address behind ib0.
func (s *stations) full() bool { return len(s.behind()) >= maxStations || len(s.byIP) >= maxStationIPs }

// claim records that a station has claimed ip. The latest claim wins, but for the addresses from netlink. It returns
// false if there is no room.
func (s *stations) claim(m ipoib.MAC, ip netip.Addr) bool {
	st, former := s.byMAC[m], s.byIP[ip]
	_, all := s.links.find(ip)
	switch {
	case st == nil || all || former == s.home:
		return true
	case st == former: // the latest is the last
		i := slices.Index(st.ips, ip)
		st.ips = append(slices.Delete(st.ips, i, i+1), ip)
		return true
	case len(st.ips) >= maxIPsPerStation:
		s.vacate(st.ips[0])
	case former == nil && len(s.byIP) >= maxStationIPs:
		return false
	}
	s.assign(st, ip)
	return true
}

// leave records that a peer has claimed ip, which ends the claim of a station. The peer may have forged it: what is still
// sent here for the address goes to that station for a while.
func (s *stations) leave(ip netip.Addr, now time.Time) {
	last, _ := s.place(ip)
	if s.byIP[ip] == s.home {
		return
	}
	if s.vacate(ip); !last.IsZero() {
		s.lack(ip, absence{now.Add(absentFor), last})
	}
}

// lacks records that no station has answered for ip. For a while its frames go to the fallback.
func (s *stations) lacks(ip netip.Addr, now time.Time) {
	if _, known := s.of(ip); !known {
		s.lack(ip, absence{until: now.Add(absentFor)})
	}
}

func (s *stations) lack(ip netip.Addr, a absence) {
	if len(s.absent) < maxAbsent {
		s.absent[ip] = a
		s.show(ip)
	}
}

// sweep forgets the stations that have been silent for stationAge, and asks again for absent addresses.
func (s *stations) sweep(now time.Time) {
	for _, st := range slices.Clone(s.list) {
		if st.refresh(now); st != s.own && now.Sub(st.seen) >= stationAge {
			s.remove(st)
		}
	}
	for ip, a := range s.absent {
		if !a.until.After(now) {
			s.vacate(ip)
		}
	}
}

// ipKey is an IP address as a key: lookups of it are faster than of a netip.Addr, whose zone is a pointer.
type ipKey [16]byte

func keyOfIP(ip netip.Addr) ipKey { return ip.As16() }

// shardOf returns the shard of an address. The addresses of a network differ in their last bytes.
func (k *ipKey) shardOf() uint { return (uint(k[15]) | uint(k[14])<<8 ^ uint(k[11])) % numShards }
