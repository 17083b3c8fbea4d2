package neigh

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ipoibd/hca/checksum"
	"ipoibd/ud/ipoib"
)

// report is a report of the host's own station, which has joined groups; answer is its answer to a query.
func report(groups ...netip.Addr) FromHost { return reportOf(recordJoin, groups) }
func answer(groups ...netip.Addr) FromHost { return reportOf(recordIs, groups) }

func reportOf(kind byte, groups []netip.Addr) FromHost {
	return FromHost{append(newFrame(ipoib.MAC{1, 0, 0x5e, 0, 0, 22}, ownMAC, ipoib.EtherTypeIPv4), groupReport(kind, groups)...)}
}

// TestGroupsAreBounded: a station cannot be a member of more groups than it may have. Those that it has stay.
func TestGroupsAreBounded(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range 3 * maxGroupsPerStation {
		b.step(report(netip.AddrFrom4([4]byte{239, 1, byte(i >> 8), byte(i)})))
	}
	groups := b.table.Stations()[0].Groups
	if len(groups) != maxGroupsPerStation || groups[0] != ip("239.1.0.0") || b.table.Stats().GroupsFull != 2*maxGroupsPerStation {
		t.Errorf("%d groups from %v on, %d reports refused", len(groups), groups[0], b.table.Stats().GroupsFull)
	}
}

// TestQueriesNeedAPort: no query is sent while ib0 is down, or without a queue pair, and the members stay.
func TestQueriesNeedAPort(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	queries := func(d time.Duration) uint64 {
		before := b.table.Stats().Queries
		b.advance(d)
		return b.table.Stats().Queries - before
	}
	if n := queries(time.Minute); n != 0 {
		t.Errorf("%d queries before the port is known", n)
	}
	b.step(HostPort{})
	b.step(report(ip("239.1.1.1")))
	if n := queries(time.Minute); n != 0 {
		t.Errorf("%d queries while ib0 is down", n)
	}
	b.step(Detached{})
	b.step(HostPort{Up: true})
	if n := queries(time.Minute); n != 0 {
		t.Errorf("%d queries without a queue pair", n)
	}
	b.step(attachedAt(selfEnd))
	b.step(report(ip("239.1.1.1")))
	b.meet(peerB, ipB)
	if n := queries(time.Minute); n != 4 {
		t.Errorf("%d queries, want two of each family", n)
	}
	// No station has answered. The host alone is not asked again.
	if n := queries(time.Hour); n != 0 || len(b.table.Stations()[0].Groups) != 0 {
		t.Errorf("%d queries, groups %v", n, b.table.Stations()[0].Groups)
	}
}

// TestQueriesWaitForTheCarrier: a new queue pair delays the queries that are due, and no other.
func TestQueriesWaitForTheCarrier(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostPort{Up: true})
	queries := func(d time.Duration) uint64 {
		before := b.table.Stats().Queries
		b.advance(d)
		return b.table.Stats().Queries - before
	}
	b.advance(queryDelay / 2)
	b.step(attachedAt(selfEnd))
	if n := queries(queryDelay - 1); n != 0 {
		t.Errorf("%d queries too early", n)
	}
	if n := queries(1); n != 2 {
		t.Errorf("%d queries, want one of each family", n)
	}
	b.step(attachedAt(selfEnd))
	if n := queries(queryIntervalFirst - 1); n != 0 {
		t.Errorf("%d queries soon after the first ones", n)
	}
	if n := queries(1); n != 2 {
		t.Errorf("%d further queries, want one of each family", n)
	}
}

// TestQueryDeadline: the next query is that of the family that is due first.
func TestQueryDeadline(t *testing.T) {
	for _, src := range []netip.Addr{ip("10.0.0.2"), ip("fe80::2")} {
		b := attachedBench(t, Config{})
		b.step(HostPort{Up: true})
		b.advance(queryDelay)
		b.step(FromHost{append(newFrame(ipoib.Broadcast, ownMAC, etherTypeFor(src)), ipoib.AppendMembershipQuery(nil, src)...)}) // asks one family
		if at, ok := b.table.NextDeadline(); !ok || at.Sub(b.now) != queryIntervalFirst {
			t.Errorf("another querier with %v: the next query is after %v, want %v", src, at.Sub(b.now), queryIntervalFirst)
		}
	}
}

// TestQueriesInQuickSuccession: a member that has answered neither of two queries has left with the third. Those within
// the time for answers are one.
func TestQueriesInQuickSuccession(t *testing.T) {
	for _, c := range []struct {
		at    []time.Duration
		stays bool
	}{
		{[]time.Duration{0, queryAnswer / 2, queryAnswer - 1}, true},
		{[]time.Duration{0, time.Second, queryAnswer, queryAnswer + time.Second}, true},
		{[]time.Duration{0, time.Second, queryAnswer, 2 * queryAnswer}, false},
		{[]time.Duration{0, queryAnswer, 2 * queryAnswer}, false},
	} {
		b := attachedBench(t, Config{})
		b.step(report(ip("239.1.1.1")))
		b.advance(1)
		start := b.now
		for _, at := range c.at {
			b.advance(start.Add(at).Sub(b.now))
			b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipoib.AppendMembershipQuery(nil, ip(ipB))...), peerB.key(), true})
		}
		if groups := b.table.Stations()[0].Groups; len(groups) == 1 != c.stays {
			t.Errorf("after queries at %v: groups %v", c.at, groups)
		}
	}
}

// TestSpeakerOfQueries: to a bridge, an IPv4 query comes from a peer with an IPv4 address, or else from the dummy address. An
// interface that is no port gets one from the unspecified address.
func TestSpeakerOfQueries(t *testing.T) {
	for _, c := range []struct {
		port HostPort
		ips  []string // of peer B
		want string
	}{
		{HostPort{Up: true}, []string{ipB}, "0.0.0.0"},
		{HostPort{Up: true, Bridge: 5, Master: bridgeMAC}, nil, "192.0.0.8"},
		{HostPort{Up: true, Bridge: 5, Master: bridgeMAC}, []string{llB}, "192.0.0.8"},
		{HostPort{Up: true, Bridge: 5, Master: bridgeMAC}, []string{llB, ipB}, ipB},
	} {
		b := attachedBench(t, Config{})
		for _, addr := range c.ips {
			if ip := ip(addr); ip.Is4() {
				b.meet(peerB, addr)
			} else {
				b.step(fabricND(peerB, nd(ipoib.NDNeighborAdvert, ip, netip.IPv6LinkLocalAllNodes(), ip, ipoibLink(2, peerB))))
			}
		}
		b.step(c.port)
		var got []netip.Addr
		for _, a := range b.advance(queryDelay) {
			if s, ok := a.(SendHost); ok && ipoib.MAC(s.Frame) == ipoib.GroupMAC(ip("224.0.0.1")) {
				src, _ := ipoib.SourceIP(ipoib.EtherTypeIPv4, s.Frame[14:])
				got = append(got, src)
			}
		}
		if len(got) != 1 || got[0] != ip(c.want) {
			t.Errorf("%+v, peer %v: queries of %v, want %s", c.port, c.ips, got, c.want)
		}
	}
}

// TestHostAnswersOneQuery: the host, which is asked only twice, is a member if it has answered one of the two queries.
func TestHostAnswersOneQuery(t *testing.T) {
	for _, answered := range []int{0, 1} {
		b := attachedBench(t, Config{})
		b.step(HostPort{Up: true})
		for i, pause := range []time.Duration{queryDelay, queryIntervalFirst} {
			if b.advance(pause); i == answered {
				b.step(answer(ip("239.1.1.1")))
			}
		}
		b.advance(time.Hour)
		if groups := b.table.Stations()[0].Groups; len(groups) != 1 {
			t.Errorf("query %d answered: groups %v", answered, groups)
		}
	}
}

// TestMalformedReport: a report with fewer records than it says passes, but teaches nothing.
func TestMalformedReport(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostPort{Up: true})
	b.advance(queryDelay)
	ev := answer(ip("239.1.1.1"))
	message := ev.Frame[14+24:]
	message[7], message[2], message[3] = 2, 0, 0
	binary.BigEndian.PutUint16(message[2:], ^checksum.Sum(message, 0))
	if only[SendFabric](t, b.step(ev)); len(b.table.Stations()[0].Groups) != 0 {
		t.Errorf("groups %v", b.table.Stations()[0].Groups)
	}
}

// TestAnswersToOwnQueries: for a while after our own query, answers do not reach the fabric.
func TestAnswersToOwnQueries(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostPort{Up: true})
	for _, c := range []struct {
		after time.Duration
		ours  uint64
	}{{0, 0}, {queryDelay, 1}, {ownAnswer - 1, 2}, {1, 2}} {
		b.advance(c.after)
		b.step(answer(ip("239.1.1.1")))
		if n := b.table.Stats().Drops[DropOwnAnswer]; n != c.ours {
			t.Errorf("after %v more: %d answers are ours, want %d", c.after, n, c.ours)
		}
	}
}

// TestPacketsForStations: what is wrong with a packet for an unknown station is counted, and the station is asked in a name
// that its sender has.
func TestPacketsForStations(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	message := func(packet []byte) FromFabric {
		return FromFabric{append(newMessage(ipoib.EtherTypeIPv4), packet...), peerB.key(), false}
	}
	for _, c := range []struct {
		why       Reason
		packet    []byte
		multicast bool
	}{
		{DropRunt, ipPacket(ip(ipB), ip("10.0.0.9"))[:19], false},
		{DropRunt, ipPacket(ip(ipB), ip("10.0.0.9"))[:19], true},
	} {
		before := b.table.Stats().Drops[c.why]
		ev := message(c.packet)
		ev.Multicast = c.multicast
		b.step(ev)
		if b.table.Stats().Drops[c.why] != before+1 {
			t.Errorf("%v is not counted for a packet of %d bytes", c.why, len(c.packet))
		}
	}
	for _, c := range []struct {
		to        string
		multicast bool
		want      ipoib.MAC
	}{
		{"224.0.0.9", false, ipoib.GroupMAC(ip("224.0.0.9"))},
		{"10.0.0.9", true, ipoib.Broadcast}, // a directed broadcast
		{ipA, false, ownMAC},
	} {
		ev := message(ipPacket(ip(ipB), ip(c.to)))
		ev.Multicast = c.multicast
		if got := ipoib.MAC(only[SendHost](t, b.step(ev)).Frame); got != c.want {
			t.Errorf("a packet to %s goes to %v, want %v", c.to, got, c.want)
		}
	}
	b.meet(peerB, "10.0.0.22")
	for _, c := range []struct{ src, to, asker string }{
		{ipB, "10.0.0.9", ipB},
		{"10.0.0.22", "10.0.0.13", "10.0.0.22"},
		{"198.51.100.1", "10.0.0.10", "10.0.0.22"}, // routed by B
		{"10.0.0.77", "10.0.0.11", "10.0.0.22"},    // forged, or not announced yet
	} {
		out := b.step(message(ipPacket(ip(c.src), ip(c.to))))
		arp, err := ipoib.ParseEtherARP(out[0].(SendHost).Frame[14:])
		if err != nil || arp.SPA != ip(c.asker) || arp.TPA != ip(c.to) {
			t.Errorf("a packet from %s to %s: %+v, %v; want a request of %s", c.src, c.to, arp, err, c.asker)
		}
	}
	// Without an address of B's, the packet's.
	e := numbered(1)
	out := b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip("10.0.0.78"), ip("10.0.0.12"))...), e.key(), false})
	if arp, err := ipoib.ParseEtherARP(out[0].(SendHost).Frame[14:]); err != nil || arp.SPA != ip("10.0.0.78") {
		t.Errorf("%+v, %v", arp, err)
	}
}

// TestGroupsOfOneFamilyExpire: only the groups of the family that was asked for expire.
func TestGroupsOfOneFamilyExpire(t *testing.T) {
	now := time.Unix(1e9, 0)
	groups := []netip.Addr{ip("239.1.1.1"), ip("ff05::1:3")}
	for typ, want := range map[ipoib.EtherType]netip.Addr{ipoib.EtherTypeIPv4: groups[1], ipoib.EtherTypeIPv6: groups[0]} {
		var s stations
		s.init()
		s.admit(firstMAC, now)
		s.join(firstMAC, ipoib.Membership{Joined: groups}, now)
		if s.expireGroups(typ, now); len(s.byMAC[firstMAC].groups) != 2 {
			t.Errorf("%#x: a member left that has answered in time", typ)
		}
		s.expireGroups(typ, now.Add(1))
		if left := s.byMAC[firstMAC].groups; len(left) != 1 || left[0].group != want {
			t.Errorf("%#x: left are %v, want %v", typ, left, want)
		}
	}
}

// TestLateReportOfAForgottenStation: a report that was kept until its destination was known may be that of a station that
// has been forgotten in the meantime.
func TestLateReportOfAForgottenStation(t *testing.T) {
	b := bridged(t)
	unknown := ipoib.MAC{2, 0x99}
	b.step(HostNeighbours{[]Neighbour{{ip(ipC), unknown}}})
	b.step(FromHost{append(newFrame(unknown, firstMAC, ipoib.EtherTypeIPv4), groupReport(recordJoin, []netip.Addr{ip("239.1.1.1")})...)})
	b.step(HostPort{Up: true, Bridge: 6, Master: secondMAC})
	b.meet(peerC, ipC)
	if s := b.table.Stats(); s.Kept != 1 || s.GroupsFull != 0 || len(b.table.Stations()) != 1 { // until the handle is ready
		t.Errorf("%+v", s)
	}
}

// TestEachChangeOfGroupsIsReported: on an InfiniBand port, whatever happens on the host's side, Groups returns something
// else only after a GroupsChanged. There is no such action on RoCE.
func TestEachChangeOfGroupsIsReported(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBench(t, Config{})
		infiniBand := rapid.Bool().Draw(t, "InfiniBand")
		ev := attachedAt(selfEnd)
		if infiniBand {
			ev.LID = 1
		}
		b.step(ev)
		macs := rapid.SampledFrom([]ipoib.MAC{ownMAC, firstMAC, secondMAC, bridgeMAC})
		groups := rapid.SliceOfN(rapid.Map(rapid.Byte(), func(n byte) netip.Addr { return netip.AddrFrom4([4]byte{239, 1, 1, n % 4}) }), 1, 2)
		ip6 := rapid.Map(rapid.Byte(), func(n byte) netip.Addr { return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 15: 1 + n%4}) })
		known := func() string {
			host, behind := b.table.Groups()
			slices.SortFunc(host, netip.Addr.Compare)
			slices.SortFunc(behind, netip.Addr.Compare)
			return fmt.Sprint(host, behind)
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			before, ev := known(), Event(nil)
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0, 1:
				kind := rapid.SampledFrom([]byte{recordJoin, recordIs, recordLeave}).Draw(t, "kind")
				frame := reportOf(kind, groups.Draw(t, "groups"))
				m := macs.Draw(t, "from")
				copy(frame.Frame[6:], m[:])
				ev = frame
			case 2:
				m, ip := macs.Draw(t, "from"), ip6.Draw(t, "claims")
				ev = hostND(m, ipoib.GroupMAC(netip.IPv6LinkLocalAllNodes()), nd(ipoib.NDNeighborAdvert, ip, netip.IPv6LinkLocalAllNodes(), ip, etherLink(2, m)))
			case 3:
				ev = HostAddrs{[]netip.Prefix{netip.PrefixFrom(ip6.Draw(t, "address"), 64)}}
			case 4:
				port := HostPort{Up: rapid.Bool().Draw(t, "up")}
				if rapid.Bool().Draw(t, "in a bridge") {
					port.Bridge, port.Master = 5, bridgeMAC
				}
				ev = port
			case 5:
				b.now = b.now.Add(time.Duration(rapid.IntRange(1, 200).Draw(t, "seconds")) * time.Second)
				ev = Tick{}
			}
			reported := slices.Contains(b.step(ev), Action(GroupsChanged{}))
			if after := known(); after != before && infiniBand && !reported {
				t.Fatalf("%T: %s, was %s, without a report", ev, after, before)
			}
			if reported && !infiniBand {
				t.Fatalf("%T: a report on RoCE", ev)
			}
		}
	})
}
