package neigh

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/ud/ipoib"
)

// membership is an IP multicast group of which a station is a member.
type membership struct {
	group netip.Addr
	seen  time.Time // when the station last reported it
}

// join notes what a station has reported about groups. It returns false if it has too many.
func (s *stations) join(m ipoib.MAC, report ipoib.Membership, now time.Time) bool {
	st := s.byMAC[m]
	if st == nil {
		return true
	}
	for _, ip := range report.Left {
		st.groups = slices.DeleteFunc(st.groups, func(g membership) bool { return g.group == ip })
	}
	room := true
	for _, ip := range report.Joined {
		i := slices.IndexFunc(st.groups, func(g membership) bool { return g.group == ip })
		switch {
		case i >= 0:
			st.groups[i].seen = now
		case len(st.groups) < maxGroupsPerStation:
			st.groups = append(st.groups, membership{ip, now})
		default:
			room = false
		}
	}
	return room
}

// expireGroups removes the memberships in a family that were last reported before a time.
func (s *stations) expireGroups(typ ipoib.EtherType, before time.Time) {
	for st := range s.each() {
		st.groups = slices.DeleteFunc(st.groups, func(g membership) bool {
			return g.group.Is4() == (typ == ipoib.EtherTypeIPv4) && g.seen.Before(before)
		})
	}
}

// querier learns the groups of the stations from their reports. It asks for them where no one else does. A member that
// has answered neither of the last two queries has left. While no one asks, members stay.
type querier struct {
	step       *step
	host       *host
	peers      *peers
	ipv4, ipv6 queries
}

// queries are those of one family.
type queries struct {
	next   time.Time    // when to ask; zero: the port has not been up
	asked  time.Time    // when we asked last
	rounds [2]time.Time // when the last queries were seen, the latest first
	end    time.Time    // when their answers have arrived; zero: they have
}

// of returns the queries of a family.
func (q *querier) of(typ ipoib.EtherType) *queries {
	if typ == ipoib.EtherTypeIPv4 {
		return &q.ipv4
	}
	return &q.ipv6
}

// restart asks anew: the port has come up, or leads elsewhere.
func (q *querier) restart() {
	next := q.step.now.Add(queryDelay)
	q.ipv4, q.ipv6 = queries{next: next}, queries{next: next}
}

// attached delays what is due: the carrier is raised now, and a bridge forwards nothing before.
func (q *querier) attached() {
	for _, f := range [...]*queries{&q.ipv4, &q.ipv6} {
		if at := q.step.now.Add(queryDelay); !f.next.IsZero() && f.next.Before(at) {
			f.next = at
		}
	}
}

// able reports whether a query would reach the stations.
func (q *querier) able() bool { return q.host.link.up && q.host.port != nil && q.host.port.Up }

// deadline returns when to call expire; zero: never.
func (q *querier) deadline() (at time.Time) {
	for _, f := range [...]queries{q.ipv4, q.ipv6} {
		if !q.able() {
			f.next = time.Time{}
		}
		for _, due := range [...]time.Time{f.next, f.end} {
			if !due.IsZero() && (at.IsZero() || due.Before(at)) {
				at = due
			}
		}
	}
	return at
}

// expire removes the members that have not answered, and sends the queries that are due.
func (q *querier) expire() {
	for _, typ := range [...]ipoib.EtherType{ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6} {
		f := q.of(typ)
		if !f.end.IsZero() && !f.end.After(q.step.now) {
			f.end = time.Time{}
			q.host.stations.expireGroups(typ, f.rounds[1])
		}
		if !f.next.IsZero() && !f.next.After(q.step.now) && q.able() {
			q.ask(typ, f)
		}
	}
}

// ask asks all stations. The host alone is asked twice: it reports each change itself, and does not vanish unnoticed as
// others may.
func (q *querier) ask(typ ipoib.EtherType, f *queries) {
	if f.rounds[1].IsZero() {
		f.next = q.step.now.Add(queryIntervalFirst)
	} else if f.next = q.step.now.Add(queryInterval); len(q.host.stations.behind) == 0 {
		return
	}
	f.asked = q.step.now
	f.round(q.step.now, 0)
	mac, src := q.speaker(typ)
	packet := ipoib.AppendMembershipQuery(nil, src)
	to, _ := ipoib.DestIP(typ, packet)
	q.step.stats.Queries++
	q.step.emit(SendHost{padded(append(newFrame(ipoib.GroupMAC(to), mac, typ), packet...))})
}

// dummyIP4 is the source address of nodes that have none (RFC 7600 section 6, 192.0.0.8).
var dummyIP4 = netip.AddrFrom4([4]byte{192, 0, 0, 8})

// speaker returns from whom a query comes: a MAC that no station has. Its IPv6 address is that MAC's. The IPv4 address is
// the unspecified one, but a bridge sends neither reports nor multicast to a port on which no querier with an address
// was heard (RFC 4541 section 2.1.1), and ignores its own address. It gets that of a peer, which the reverse path filters
// of stations accept.
func (q *querier) speaker(typ ipoib.EtherType) (ipoib.MAC, netip.Addr) {
	self := q.host.link.self
	mac := plainMAC(self.gid)
	for n := uint32(1); q.host.stations.is(mac); n++ {
		mac = rehashedMAC(self.gid, self.qpn, n)
	}
	switch {
	case typ == ipoib.EtherTypeIPv6:
		return mac, mac.LinkLocal()
	case q.host.port.Master.IsZero():
		return mac, netip.IPv4Unspecified()
	}
	for p := range q.peers.live.all() {
		for _, ip := range p.ips {
			if ip.Is4() {
				return p.mac, ip
			}
		}
	}
	return mac, dummyIP4
}

// round notes a query that is answered within a time. Queries in quick succession are one.
func (f *queries) round(now time.Time, within time.Duration) {
	if now.Sub(f.rounds[0]) >= queryAnswer {
		f.rounds = [2]time.Time{now, f.rounds[0]}
	}
	if end := now.Add(max(within, queryAnswer)); end.After(f.end) {
		f.end = end
	}
}

// learn notes a membership message: of a station, or, with src zero, of a peer, of which only queries count. It reports
// whether the message answers our own query, so that no one on the fabric waits for it.
func (q *querier) learn(src ipoib.MAC, typ ipoib.EtherType, packet []byte) (ours bool) {
	m, err := ipoib.ParseMembership(typ, packet, maxGroupsPerStation)
	f := q.of(typ)
	switch {
	case err != nil:
	case m.Query: // another querier asks from now on
		f.round(q.step.now, m.Within)
		f.next = q.step.now.Add(otherQuerier)
	case !src.IsZero():
		if !q.host.stations.join(src, m, q.step.now) {
			q.step.stats.GroupsFull++
		}
		return !f.asked.IsZero() && q.step.now.Sub(f.asked) < ownAnswer
	}
	return false
}
