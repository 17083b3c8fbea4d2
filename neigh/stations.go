package neigh

import (
	"cmp"
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
	mac   ipoib.MAC
	ips   []netip.Addr // the latest claim last
	fixed bool         // its addresses are known from netlink: no claim takes them away
	seen  time.Time    // when it last sent
	sent  *atomic.Bool // set by snapshots: it has sent since marks were last read

	groups []membership
}

// refresh reads and clears the mark of the data path.
func (s *station) refresh(now time.Time) {
	if s.sent.Load() && s.sent.Swap(false) {
		s.seen = now
	}
}

// stations are the MACs on the host's side: ib0's own, and those behind it, such as the guests of a
// bridge of which ib0 is a port, or macvlan interfaces on ib0. They claim addresses by ARP, ND or DHCP.
type stations struct {
	own    *station
	behind []*station             // in the order in which they were first seen
	byMAC  map[ipoib.MAC]*station // of own and behind

	master   ipoib.MAC                // of the bridge of which ib0 is a port; zero: none
	home     *station                 // the addresses of ib0 and its master, at the MAC of the master, or else ib0's
	everyone *station                 // the directed broadcast addresses of the networks of home
	byIP     map[netip.Addr]*station  // of all, home and everyone included
	absent   map[netip.Addr]time.Time // those for which no station has answered, until when
	links    networks                 // of home
	router   bool                     // home is an IPv6 router
	gate     *station                 // behind ib0, an IPv6 router; nil: none

	up      draft[macKey, *atomic.Bool] // for the data path: marks of those behind ib0
	down    draft[ipKey, ipoib.MAC]     // destinations of byIP and absent
	changed bool                        // since changes were last taken
	found   []netip.Addr                // addresses learnt since then
}

// init makes s empty. ib0 has no MAC before setOwn.
func (s *stations) init() {
	s.own = &station{sent: new(atomic.Bool)}
	s.home = &station{fixed: true}
	s.everyone = &station{mac: ipoib.Broadcast, fixed: true}
	s.byMAC = map[ipoib.MAC]*station{{}: s.own}
	s.byIP = make(map[netip.Addr]*station)
	s.absent = make(map[netip.Addr]time.Time)
}

// is reports whether m is a station.
func (s *stations) is(m ipoib.MAC) bool { return s.byMAC[m] != nil }

// fallback returns the station for an address that is not on the link, or that no station has answered for.
func (s *stations) fallback(ip netip.Addr) ipoib.MAC {
	if s.gate != nil && ip.Is6() {
		return s.gate.mac
	}
	return s.home.mac
}

// of returns the station for frames to ip. It returns false if a station may have the address that is not known.
func (s *stations) of(ip netip.Addr) (ipoib.MAC, bool) {
	if m, ok := s.entry(ip); ok {
		return m, true
	}
	return s.fallback(ip), !s.links.local(ip)
}

// entry is of for the addresses that are known one by one.
func (s *stations) entry(ip netip.Addr) (ipoib.MAC, bool) {
	if st := s.byIP[ip]; st != nil {
		return st.mac, true
	}
	_, absent := s.absent[ip]
	return s.fallback(ip), absent
}

// dest is of, with the fallback for what is not known.
func (s *stations) dest(ip netip.Addr) ipoib.MAC {
	m, _ := s.of(ip)
	return m
}

// has reports whether one station has ip.
func (s *stations) has(ip netip.Addr) bool {
	st := s.byIP[ip]
	return st != nil && st != s.everyone
}

// none reports whether no address is known.
func (s *stations) none() bool { return len(s.byIP) == 0 }

// all yields the addresses of all stations: those of home first, and the others in the order of their stations.
func (s *stations) all() iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, ip := range s.home.ips {
			if !yield(ip) {
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

// each yields all stations, ib0's own first.
func (s *stations) each() iter.Seq[*station] {
	return func(yield func(*station) bool) {
		if !yield(s.own) {
			return
		}
		for _, st := range s.behind {
			if !yield(st) {
				return
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
	if st := s.byMAC[m]; st != nil && st != s.own {
		s.remove(st)
	}
	delete(s.byMAC, s.own.mac)
	s.byMAC[m] = s.own
	s.own.mac, s.own.seen, s.own.sent = m, now, new(atomic.Bool)
	s.readdress()
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
	if s.home.mac = s.master; s.master.IsZero() {
		s.home.mac = s.own.mac
	}
	for _, ip := range slices.Concat(s.home.ips, s.own.ips) {
		s.show(ip)
	}
	for ip := range s.absent {
		s.show(ip)
	}
	s.changed = true // the snapshot's own fields
}

// setGiven replaces the addresses of home and reports whether any is new.
func (s *stations) setGiven(addrs []netip.Prefix) (added bool) {
	ips, links := networksOf(addrs)
	if slices.Equal(ips, s.home.ips) && slices.Equal(links, s.links) {
		return false
	}
	added = slices.ContainsFunc(ips, func(ip netip.Addr) bool { return !s.has(ip) })
	s.links = links
	s.setIPs(s.home, ips)
	s.setIPs(s.everyone, slices.DeleteFunc(links.broadcasts(), func(ip netip.Addr) bool { return slices.Contains(ips, ip) }))
	return added
}

// setIPs replaces the addresses of a station.
func (s *stations) setIPs(st *station, ips []netip.Addr) {
	for _, ip := range slices.Clone(st.ips) {
		s.vacate(ip)
	}
	for _, ip := range ips {
		s.assign(st, ip)
	}
}

// assign gives an address to a station, and takes it from the one that had it.
func (s *stations) assign(st *station, ip netip.Addr) {
	s.vacate(ip)
	st.ips = append(st.ips, ip)
	s.byIP[ip] = st
	s.show(ip)
}

// vacate takes an address from the station that has it, and forgets that none answered for it.
func (s *stations) vacate(ip netip.Addr) {
	if _, known := s.entry(ip); !known {
		return
	}
	if st := s.byIP[ip]; st != nil {
		st.ips = slices.DeleteFunc(st.ips, func(other netip.Addr) bool { return other == ip })
	}
	delete(s.byIP, ip)
	delete(s.absent, ip)
	s.show(ip)
}

// show shows the data path where an address is. It must be called when that has changed.
func (s *stations) show(ip netip.Addr) {
	k := keyOfIP(ip)
	if m, ok := s.entry(ip); ok {
		s.down.shard(k.shardOf())[k] = m
	} else {
		delete(s.down.shard(k.shardOf()), k)
	}
	s.changed = true
}

// admit reports whether a frame from src, a unicast address, may pass. It learns src as a station, if there is
// room.
func (s *stations) admit(src ipoib.MAC, now time.Time) bool {
	st := s.byMAC[src]
	if st == nil {
		if len(s.behind) >= maxStations && !s.makeRoom(now) {
			return false
		}
		st = &station{mac: src, sent: new(atomic.Bool)}
		s.behind, s.byMAC[src] = append(s.behind, st), st
		key := keyOf(src)
		s.up.shard(key.shardOf())[key] = st.sent
		s.changed = true
	}
	st.seen = now
	return true
}

// makeRoom removes the station that has been silent for longest, one without an address first. One with an address
// stays for stationAge.
func (s *stations) makeRoom(now time.Time) bool {
	for _, st := range s.behind {
		st.refresh(now)
	}
	st := slices.MinFunc(s.behind, func(a, b *station) int {
		return cmp.Or(cmp.Compare(min(len(a.ips), 1), min(len(b.ips), 1)), a.seen.Compare(b.seen))
	})
	if len(st.ips) > 0 && now.Sub(st.seen) < stationAge {
		return false
	}
	s.remove(st)
	return true
}

// remove forgets a station behind ib0, and its addresses.
func (s *stations) remove(st *station) {
	s.setIPs(st, nil)
	if s.gate == st {
		s.gate = nil
		s.readdress()
	}
	s.behind = slices.DeleteFunc(s.behind, func(other *station) bool { return other == st })
	delete(s.byMAC, st.mac)
	key := keyOf(st.mac)
	delete(s.up.shard(key.shardOf()), key)
	s.changed = true
}

// clear forgets all stations behind ib0, and what they have claimed.
func (s *stations) clear() {
	for _, st := range slices.Clone(s.behind) {
		s.remove(st)
	}
	s.setIPs(s.own, nil)
	s.own.groups = nil
	for ip := range s.absent {
		s.vacate(ip)
	}
	s.router = false
}

// full reports whether there is no room for another MAC or address behind ib0.
func (s *stations) full() bool { return len(s.behind) >= maxStations || len(s.byIP) >= maxStationIPs }

// claim records that a station has claimed ip. The latest claim wins. It returns false if there is no room.
func (s *stations) claim(m ipoib.MAC, ip netip.Addr) bool {
	st, former := s.byMAC[m], s.byIP[ip]
	switch {
	case st == nil || st == former || former != nil && former.fixed:
		return true
	case len(st.ips) >= maxIPsPerStation:
		s.vacate(st.ips[0])
	case former == nil && len(s.byIP) >= maxStationIPs:
		return false
	}
	s.assign(st, ip)
	s.found = append(s.found, ip)
	return true
}

// release records that a peer has claimed ip. If a station had it by a claim, it has moved away.
func (s *stations) release(ip netip.Addr) {
	if st := s.byIP[ip]; st == nil || !st.fixed {
		s.vacate(ip)
	}
}

// lacks records that no station has answered for ip. For a while its frames go to the fallback.
func (s *stations) lacks(ip netip.Addr, now time.Time) {
	if _, known := s.of(ip); !known && len(s.absent) < maxAbsent {
		s.absent[ip] = now.Add(absentFor)
		s.show(ip)
	}
}

// routes records that a station is an IPv6 router. One that only says so in neighbour advertisements, as each machine
// with containers does, is one if there is no other.
func (s *stations) routes(m ipoib.MAC, advert bool) {
	switch st := s.byMAC[m]; {
	case m == s.home.mac:
		s.router = true
	case st != nil && st != s.gate && (advert || s.gate == nil && !s.router):
		s.gate = st
		s.readdress()
	}
}

// isRouter reports whether an address is that of an IPv6 router.
func (s *stations) isRouter(ip netip.Addr) bool {
	st := s.byIP[ip]
	return st != nil && (st == s.gate || s.router && st.mac == s.home.mac)
}

// sweep forgets the stations that have been silent for stationAge, and asks again for absent addresses.
func (s *stations) sweep(now time.Time) {
	for st := range s.each() {
		st.refresh(now)
	}
	for _, st := range slices.Clone(s.behind) {
		if now.Sub(st.seen) >= stationAge {
			s.remove(st)
		}
	}
	for ip, until := range s.absent {
		if !until.After(now) {
			s.vacate(ip)
		}
	}
}

// idle reports whether sweep has nothing to do.
func (s *stations) idle() bool { return len(s.behind)+len(s.absent) == 0 }

// ipKey is an IP address as a key: lookups of it are faster than of a netip.Addr, whose zone is a pointer.
type ipKey [16]byte

func keyOfIP(ip netip.Addr) ipKey { return ip.As16() }

// shardOf returns the shard of an address. The addresses of a network differ in their last bytes.
func (k *ipKey) shardOf() uint { return (uint(k[15]) | uint(k[14])<<8 ^ uint(k[11])) % numShards }
