package neigh

import (
	"net/netip"
	"slices"
	"time"

	"ipoibd/ud/ipoib"
)

// membership is an IP multicast group that a station has joined.
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
		s.part(st, func(g membership) bool { return g.group == ip })
	}
	room := true
	for _, ip := range report.Joined {
		i := slices.IndexFunc(st.groups, func(g membership) bool { return g.group == ip })
		switch {
		case i >= 0:
			st.groups[i].seen = now
		case len(st.groups) < maxGroupsPerStation:
			st.groups = append(st.groups, membership{ip, now})
			s.regrouped = true
		default:
			room = false
		}
	}
	return room
}

// expireGroups removes the memberships in a family that were last reported before a time.
func (s *stations) expireGroups(typ ipoib.EtherType, before time.Time) {
	for _, st := range s.list {
		s.part(st, func(g membership) bool {
			return g.group.Is4() == (typ == ipoib.EtherTypeIPv4) && g.seen.Before(before)
		})
	}
}

// part removes memberships of a station.
func (s *stations) part(st *station, which func(membership) bool) {
	n := len(st.groups)
	st.groups = slices.DeleteFunc(st.groups, which)
	s.regrouped = s.regrouped || len(st.groups) < n
}

// Groups returns the IP multicast groups in which the host and the stations behind it are, as far as the table knows:
// those that they have reported, and the solicited-node groups of their IPv6 addresses. A group that several stations
// are in is listed several times. The order is that in which the stations were first seen. It allocates.
func (t *Table) Groups() (host, behind []netip.Addr) {
	s := &t.host.stations
	for _, st := range slices.Concat([]*station{s.home}, s.list) {
		to := &behind
		if st == s.home || st == s.own || st.mac == s.home.mac {
			to = &host
		}
		for _, ip := range st.ips {
			if ip.Is6() {
				*to = append(*to, ipoib.SolicitedNode(ip))
			}
		}
		for _, g := range st.groups {
			*to = append(*to, g.group)
		}
	}
	return host, behind
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
	asked  time.Time    // when we asked, if no one else has since
	rounds [2]time.Time // when the last queries were seen, the latest first
}

// of returns the queries of a family.
func (q *querier) of(typ ipoib.EtherType) *queries {
	if typ == ipoib.EtherTypeIPv4 {
		return &q.ipv4
	}
	return &q.ipv6
}

// restart begins with the first query: the port has come up, or belongs to another bridge.
func (q *querier) restart() {
	next := q.step.now.Add(queryDelay)
	q.ipv4, q.ipv6 = queries{next: next}, queries{next: next}
}

// attached delays what is due: the carrier is raised now, and a bridge forwards nothing before.
func (q *querier) attached() {
	for _, f := range [...]*queries{&q.ipv4, &q.ipv6} {
		if at := q.step.now.Add(queryDelay); f.next.Before(at) {
			f.next = at
		}
	}
}

// deadline returns when to call expire; zero: never.
func (q *querier) deadline() time.Time {
	switch {
	case !q.able():
		return time.Time{}
	case q.ipv6.next.Before(q.ipv4.next):
		return q.ipv6.next
	}
	return q.ipv4.next
}

// able reports whether a query would reach the stations.
func (q *querier) able() bool { return q.host.link.up && q.host.port != nil && q.host.port.Up }

// expire sends the queries that are due.
func (q *querier) expire() {
	for _, typ := range [...]ipoib.EtherType{ipoib.EtherTypeIPv4, ipoib.EtherTypeIPv6} {
		if f := q.of(typ); q.able() && !f.next.After(q.step.now) {
			q.ask(typ, f)
		}
	}
}

// ask asks all stations. A host without guests is asked only twice, because its kernel reports each change.
func (q *querier) ask(typ ipoib.EtherType, f *queries) {
	if f.rounds[1].IsZero() {
		f.next = q.step.now.Add(queryIntervalFirst)
	} else if f.next = q.step.now.Add(queryInterval); len(q.host.stations.behind()) == 0 {
		q.host.stations.expireGroups(typ, f.rounds[1])
		return
	}
	f.asked = q.step.now
	q.round(typ, f)
	mac, src := q.speaker(typ)
	packet := ipoib.AppendMembershipQuery(nil, src)
	to, _ := ipoib.DestIP(typ, packet)
	q.step.stats.Queries++
	q.step.emit(SendHost{padded(append(newFrame(ipoib.GroupMAC(to), mac, typ), packet...))})
}

// round notes a query, and removes the members that have answered neither of the last two. Queries in quick succession
// are one.
func (q *querier) round(typ ipoib.EtherType, f *queries) {
	if q.step.now.Sub(f.rounds[0]) >= queryAnswer {
		q.host.stations.expireGroups(typ, f.rounds[1])
		f.rounds = [2]time.Time{q.step.now, f.rounds[0]}
	}
}

// dummyIP4 is the source address of nodes that have none (RFC 7600 section 6, 192.0.0.8).
var dummyIP4 = netip.AddrFrom4([4]byte{192, 0, 0, 8})

// speaker returns from whom a query comes: a MAC that no station has, and its IPv6 address. The IPv4 address is the
// unspecified one. A bridge needs another one: it sends neither reports nor multicast to a port on which no querier
// with an address was heard (RFC 4541 section 2.1.1), and ignores its own. So it gets that of a peer, which passes the
// reverse path filters of stations, or else the dummy address.
func (q *querier) speaker(typ ipoib.EtherType) (ipoib.MAC, netip.Addr) {
	self := q.host.link.self
	mac := freeMAC(self.gid, self.qpn, 0, q.host.stations.is)
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

// fromStation takes a membership message of a station. It reports whether the message answers our own query, so that no
// one on the fabric waits for it.
func (q *querier) fromStation(src ipoib.MAC, typ ipoib.EtherType, packet []byte) (ours bool) {
	m, err := ipoib.ParseMembership(typ, packet, maxGroupsPerStation)
	f := q.of(typ)
	switch {
	case err != nil:
		return false
	case m.Query:
		q.heard(typ, f)
		return false
	case !q.host.stations.join(src, m, q.step.now):
		q.step.stats.GroupsFull++
	}
	return m.Answer && q.step.now.Sub(f.asked) < ownAnswer
}

// fromPeer takes an IP packet of a peer, which may be a query.
func (q *querier) fromPeer(typ ipoib.EtherType, packet []byte) {
	if m, err := ipoib.ParseMembership(typ, packet, 0); err == nil && m.Query {
		q.heard(typ, q.of(typ))
	}
}

// heard notes another querier, which asks from now on.
func (q *querier) heard(typ ipoib.EtherType, f *queries) {
	q.round(typ, f)
	f.next, f.asked = q.step.now.Add(otherQuerier), time.Time{}
}
