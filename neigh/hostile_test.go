package neigh

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/hca/checksum"
	"ipoibd/ud/ipoib"
)

// What guests behind ib0, and peers, can do to the stations.

func claimOf(m ipoib.MAC, addr string) FromHost {
	return hostARP(m, ipoib.Broadcast, ipoib.ARPRequest, addr, ipB)
}

func TestMappedClaimOfAGuest(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(given(ip(ipA), ip("10.0.0.41"), ip("10.0.0.42"), ip("10.0.0.43"), ip("10.0.0.44"), ip("10.0.0.45"), ip(llA)))
	b.step(claimOf(firstMAC, "10.0.0.8"))
	b.advance(latePause)
	for _, victim := range []string{"10.0.0.8", "10.0.0.45", "10.0.0.255"} {
		want, _ := b.snap.StationMAC(ip(victim))
		mapped := netip.MustParseAddr("::ffff:" + victim)
		b.step(hostND(secondMAC, ipoib.GroupMAC(ip("ff02::1")), nd(ipoib.NDNeighborAdvert, ip("fe80::66"), ip("ff02::1"), mapped, etherLink(2, secondMAC))))
		b.advance(latePause)
		if got, ok := b.snap.StationMAC(ip(victim)); got != want || !ok {
			t.Errorf("%s is at %v, %t; want %v", victim, got, ok, want)
		}
	}
}

func TestMappedPacketOfAPeer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(claimOf(firstMAC, "10.0.0.8"))
	b.advance(latePause)
	packet := ipPacket(ip("2001:db8::1"), ip("2001:db8::2"))
	copy(packet[24:], ip("::ffff:10.0.0.8").AsSlice())
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), packet...), peerB.key(), false})
	b.advance(2 * time.Second)
	if got, ok := b.snap.StationMAC(ip("10.0.0.8")); got != firstMAC {
		t.Errorf("10.0.0.8 is at %v, %t; want %v", got, ok, firstMAC)
	}
	for range 2 * maxStations / 512 { // keeps the station
		b.step(claimOf(firstMAC, "10.0.0.8"))
		b.advance(time.Minute)
	}
	if got, ok := b.snap.StationMAC(ip("10.0.0.8")); got != firstMAC {
		t.Errorf("minutes later: 10.0.0.8 is at %v, %t; want %v", got, ok, firstMAC)
	}
}

var bridgeMAC = ipoib.MAC{2, 0xbe}

func bridged(t *testing.T) *bench {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(HostPort{Up: true, Bridge: 5, Master: bridgeMAC})
	b.step(hostARP(bridgeMAC, ipoib.Broadcast, ipoib.ARPRequest, ipA, ipB))
	b.advance(latePause)
	return b
}

func TestInventedStationsLeaveTheHost(t *testing.T) {
	b := bridged(t)
	p := player{bench: b}
	for i := range 2 * maxStations {
		b.snap.FromHost(bridgeMAC) // the host sends all the time
		p.quickStep(claimOf(ipoib.MAC{2, 2, 0, 0, byte(i >> 8), byte(i)}, fmt.Sprintf("10.1.%d.%d", i>>8, byte(i))))
	}
	before := b.table.Stats().Drops[DropStationsFull]
	p.quickStep(hostARP(bridgeMAC, ipoib.Broadcast, ipoib.ARPRequest, ipA, ipB))
	if n := b.table.Stats().Drops[DropStationsFull] - before; n != 0 || !b.table.host.stations.is(bridgeMAC) {
		t.Errorf("%d frames of the host were dropped; it is a station: %t", n, b.table.host.stations.is(bridgeMAC))
	}
}

func TestActiveStationStays(t *testing.T) {
	var s stations
	s.init()
	now := time.Unix(1e9, 0)
	s.admit(firstMAC, now)
	for i := range maxStations - 1 {
		m := ipoib.MAC{2, 2, 0, 0, byte(i >> 8), byte(i)}
		s.admit(m, now)
		s.claim(m, netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
	}
	for _, st := range s.behind() {
		st.sent.Store(true) // the data path has seen it just now
	}
	if s.admit(secondMAC, now) || s.byMAC[firstMAC] == nil {
		t.Error("the station that sends was evicted")
	}
	if !s.admit(secondMAC, now.Add(time.Second)) || s.byMAC[firstMAC] != nil {
		t.Error("the station that has not sent since was not evicted")
	}
}

func TestHostThatAdvertisesItselfIsTheRouter(t *testing.T) {
	for _, handed := range []bool{false, true} {
		b := attachedBench(t, Config{})
		b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("fe80::a/64")}})
		ra := func() {
			b.step(hostND(ownMAC, ipoib.GroupMAC(ip("ff02::1")), nd(ipoib.NDRouterAdvert, ip(llA), ip("ff02::1"), netip.Addr{}, etherLink(1, ownMAC))))
		}
		na := func() {
			m := nd(ipoib.NDNeighborAdvert, ip("fe80::66"), ip("ff02::1"), ip("fe80::66"), etherLink(2, guestMAC))
			m.fixed[0] |= ipoib.NAFlagRouter
			b.step(hostND(guestMAC, ipoib.GroupMAC(ip("ff02::1")), m))
		}
		if handed { // the host advertises itself, then the process is replaced
			ra()
			na()
			before := b.table.Stations()
			c := newBench(t, Config{})
			c.step(Restored{Stations: before})
			c.step(HostMAC{ownMAC})
			c.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("fe80::a/64")}})
			c.step(attachedAt(selfEnd))
			c.advance(time.Minute)
			b = c
			if m, ok := b.snap.StationMAC(ip("2001:db8:1::1")); m != ownMAC {
				t.Errorf("handed over: other networks are at %v, %t; want the host", m, ok)
			}
		}
		na()
		ra()
		b.advance(time.Minute)
		ra()
		if m, ok := b.snap.StationMAC(ip("2001:db8:1::1")); m != ownMAC {
			t.Errorf("handed over %t: other networks are at %v, %t; want the host, which advertises itself", handed, m, ok)
		}
	}
}

func TestRouterRetires(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}})
	for _, lifetime := range []byte{7, 0} {
		m := nd(ipoib.NDRouterAdvert, ip("fe80::66"), ip("ff02::1"), netip.Addr{}, etherLink(1, guestMAC))
		m.fixed[2], m.fixed[3] = lifetime, 0
		b.step(hostND(guestMAC, ipoib.GroupMAC(ip("ff02::1")), m))
	}
	b.advance(time.Second)
	if m, _ := b.snap.StationMAC(ip("2001:db8:1::1")); m != ownMAC {
		t.Errorf("other networks are at %v, which is no router any more", m)
	}
}

func TestWhoIsARouter(t *testing.T) {
	advert := ipoib.ND{Type: ipoib.NDRouterAdvert, Lifetime: 1}
	retires := ipoib.ND{Type: ipoib.NDRouterAdvert}
	flagged := ipoib.ND{Type: ipoib.NDNeighborAdvert, Flags: ipoib.NAFlagRouter | ipoib.NAFlagOverride}
	plain := ipoib.ND{Type: ipoib.NDNeighborAdvert, Flags: ipoib.NAFlagOverride}
	others := []ipoib.ND{{Type: ipoib.NDRouterSolicit}, {Type: ipoib.NDNeighborSolicit, Flags: ipoib.NAFlagRouter}, {Type: ipoib.NDRedirect, Lifetime: 1}}
	for _, c := range []struct {
		was, advert, retires, flagged, plain routerKind
	}{
		{notRouter, advertises, notRouter, saysSo, notRouter},
		{saysSo, advertises, notRouter, saysSo, notRouter},
		{advertises, advertises, notRouter, advertises, advertises},
	} {
		got := []routerKind{c.was.after(advert), c.was.after(retires), c.was.after(flagged), c.was.after(plain)}
		if want := []routerKind{c.advert, c.retires, c.flagged, c.plain}; !slices.Equal(got, want) {
			t.Errorf("from %d: %d, want %d", c.was, got, want)
		}
		for _, m := range others {
			if got := c.was.after(m); got != c.was {
				t.Errorf("from %d, after a message of type %d: %d", c.was, m.Type, got)
			}
		}
	}
}

// Of several routers, the present one stays. A better one replaces it.
func TestRoutersTakeTurns(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}})
	send := func(m ipoib.MAC, typ, flags byte) {
		msg := nd(typ, ip("fe80::66"), ip("ff02::1"), ip("fe80::66"), etherLink(linkType(typ), m))
		msg.fixed[0] |= flags
		b.step(hostND(m, ipoib.GroupMAC(ip("ff02::1")), msg))
	}
	third := ipoib.MAC{2, 0xdd}
	for _, m := range []ipoib.MAC{firstMAC, secondMAC, third} {
		b.step(claimOf(m, "10.0.0.8"))
	}
	for _, c := range []struct {
		what  string
		from  ipoib.MAC
		typ   byte
		flags byte
		want  ipoib.MAC
	}{
		{"the second says so", secondMAC, ipoib.NDNeighborAdvert, ipoib.NAFlagRouter, secondMAC},
		{"the first says so too", firstMAC, ipoib.NDNeighborAdvert, ipoib.NAFlagRouter, secondMAC},
		{"the third says so too", third, ipoib.NDNeighborAdvert, ipoib.NAFlagRouter, secondMAC},
		{"the third advertises itself", third, ipoib.NDRouterAdvert, 0, third},
		{"the first advertises itself too", firstMAC, ipoib.NDRouterAdvert, 0, third},
		{"the host says so", ownMAC, ipoib.NDNeighborAdvert, ipoib.NAFlagRouter, third},
		{"the host advertises itself", ownMAC, ipoib.NDRouterAdvert, 0, ownMAC},
	} {
		send(c.from, c.typ, c.flags)
		b.advance(latePause)
		if m, _ := b.snap.StationMAC(ip("2001:db8:1::1")); m != c.want {
			t.Errorf("%s: other networks are at %v, want %v", c.what, m, c.want)
		}
	}
}

func TestRouterStaysWhenIb0ChangesItsMAC(t *testing.T) {
	var s stations
	s.init()
	now := time.Unix(1e9, 0)
	s.setOwn(ownMAC, now)
	s.setMaster(ownMAC, now)
	for _, m := range []ipoib.MAC{secondMAC, firstMAC} {
		s.admit(m, now)
		s.sentND(m, ipoib.ND{Type: ipoib.NDRouterAdvert, Lifetime: 1})
	}
	s.setOwn(firstMAC, now)
	if got := s.dest(ip("2001:db8::9")); got != secondMAC {
		t.Errorf("other networks are at %v, want the present router %v", got, secondMAC)
	}
}

func TestRouterFallsSilent(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}})
	m := nd(ipoib.NDRouterAdvert, ip("fe80::66"), ip("ff02::1"), netip.Addr{}, etherLink(1, guestMAC))
	b.step(hostND(guestMAC, ipoib.GroupMAC(ip("ff02::1")), m))
	b.advance(latePause)
	if m, _ := b.snap.StationMAC(ip("2001:db8:1::1")); m != guestMAC {
		t.Fatalf("other networks are at %v, want the router", m)
	}
	b.advance(stationAge + sweepInterval)
	if m, _ := b.snap.StationMAC(ip("2001:db8:1::1")); m != ownMAC {
		t.Errorf("other networks are at %v, which is no station any more", m)
	}
}

func TestBridgeChangesItsMAC(t *testing.T) {
	b := bridged(t)
	b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("10.0.0.1/24"), netip.MustParsePrefix("2001:db8::1/64")}})
	b.step(claimOf(firstMAC, "10.0.0.8"))
	b.step(hostND(guestMAC, ipoib.GroupMAC(ip("ff02::1")), nd(ipoib.NDRouterAdvert, ip("fe80::66"), ip("ff02::1"), netip.Addr{}, etherLink(1, guestMAC))))
	b.advance(latePause)
	b.step(HostPort{Up: true, Bridge: 5, Master: ipoib.MAC{2, 0x01}})
	b.advance(time.Second)
	if m, ok := b.snap.StationMAC(ip("10.0.0.8")); m != firstMAC || !ok {
		t.Errorf("10.0.0.8 is at %v, %t", m, ok)
	}
	if m, _ := b.snap.StationMAC(ip("2001:db8:1::1")); m != guestMAC {
		t.Errorf("other networks are at %v, want the router %v", m, guestMAC)
	}
}

func TestBridgeThatIsTheRouterChangesItsMAC(t *testing.T) {
	for _, last := range []ipoib.MAC{bridgeMAC, ownMAC} {
		b := bridged(t)
		b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}})
		b.step(HostPort{Up: true, Bridge: 5, Master: last})
		guest := nd(ipoib.NDNeighborAdvert, ip("fe80::66"), ip("ff02::1"), ip("fe80::66"), etherLink(2, guestMAC))
		guest.fixed[0] |= ipoib.NAFlagRouter
		b.step(hostND(guestMAC, ipoib.GroupMAC(ip("ff02::1")), guest)) // a router as well, but the host is a better one
		b.step(hostND(last, ipoib.GroupMAC(ip("ff02::1")), nd(ipoib.NDRouterAdvert, ip(llA), ip("ff02::1"), netip.Addr{}, etherLink(1, last))))
		b.advance(latePause)
		for _, master := range []ipoib.MAC{last, {2, 0x01}} {
			b.step(HostPort{Up: true, Bridge: 5, Master: master})
			if m, ok := b.snap.StationMAC(ip("2001:db8:1::1")); m != master || !ok {
				t.Errorf("other networks are at %v, %t, the bridge is at %v", m, ok, master)
			}
		}
	}
}

func TestOldestClaimMakesRoom(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(claimOf(firstMAC, "10.0.0.8"))
	for i := range maxIPsPerStation {
		b.step(claimOf(firstMAC, fmt.Sprintf("10.0.1.%d", i+1)))
		if i < maxIPsPerStation-1 {
			b.step(claimOf(firstMAC, "10.0.0.8"))
		}
	}
	if !b.table.host.stations.has(ip("10.0.0.8")) {
		t.Error("the address that was claimed last but one is gone; the one that was claimed first is not")
	}
}

func TestAnswerForAStationWithoutRoom(t *testing.T) {
	b := attachedBench(t, Config{})
	p := player{bench: b}
	b.meet(peerB, ipB)
	for i := range maxStationIPs {
		p.quickStep(claimOf(ipoib.MAC{2, 2, 0, 0, byte(i >> 13), byte(i >> 5)}, fmt.Sprintf("10.1.%d.%d", i>>8, byte(i))))
	}
	if n := len(b.table.host.stations.byIP); n != maxStationIPs {
		t.Fatal(n)
	}
	b.step(claimOf(firstMAC, "10.0.0.8"))
	for _, a := range b.step(fabricARP(peerB, ipoib.ARPReply, ipB, "10.0.0.8", false)) {
		if s, ok := a.(SendHost); ok {
			if m := ipoib.MAC(s.Frame); m != firstMAC && !m.IsBroadcast() {
				t.Errorf("the answer goes to %v, want %v or all", m, firstMAC)
			}
		}
	}
}

func TestJoinAfterOwnQueryIsNoAnswer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(HostPort{Up: true})
	b.advance(queryDelay + 100*time.Millisecond)
	if b.table.Stats().Queries == 0 {
		t.Fatal("no query")
	}
	sent := 0
	for _, a := range b.step(report(ip("239.1.1.1"))) { // CHANGE_TO_EXCLUDE: a change of state
		if _, ok := a.(SendFabric); ok {
			sent++
		}
	}
	if sent == 0 {
		t.Error("the fabric does not hear of a change")
	}
}

func TestAnswersToAnotherQuerierPass(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(HostPort{Up: true})
	b.advance(queryDelay + 100*time.Millisecond)
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipoib.AppendMembershipQuery(nil, ip(ipB))...), peerB.key(), true})
	sent := 0
	for _, a := range b.step(answer(ip("239.1.1.1"))) {
		if _, ok := a.(SendFabric); ok {
			sent++
		}
	}
	if sent == 0 {
		t.Error("the other querier gets no answer")
	}
}

func mldQuery(src, dst netip.Addr, within uint16) []byte {
	p := ipoib.AppendMembershipQuery(nil, ip("fe80::1"))
	copy(p[8:], src.AsSlice())
	copy(p[24:], dst.AsSlice())
	m := p[48:]
	binary.BigEndian.PutUint16(m[4:], within)
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], ^checksum.Sum(m, checksum.Pseudo(p[8:40], 58, len(m))))
	return p
}

func TestQueriesThatNobodyAnswers(t *testing.T) {
	for _, c := range []struct{ what, src, dst string }{
		{"without a source (RFC 3810 section 5.1.14)", "::", "ff02::1"},
		{"from a global address", "2001:db8::1", "ff02::1"},
		{"to a group that no one listens to", "fe80::66", "ff02::9999"},
	} {
		b := attachedBench(t, Config{})
		b.meet(peerB, ipB)
		b.step(HostPort{Up: true})
		b.step(claimOf(guestMAC, "10.0.0.8"))
		b.advance(time.Minute)
		b.step(FromHost{append(newFrame(ipoib.GroupMAC(ip("ff02::16")), guestMAC, ipoib.EtherTypeIPv6), groupReport(recordIs, []netip.Addr{ip("ff05::1:3")})...)})
		before := b.table.Stats().Queries
		for range 20 { // the station answers our own queries
			b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), mldQuery(ip(c.src), ip(c.dst), 1000)...), peerB.key(), true})
			b.step(claimOf(guestMAC, "10.0.0.8"))
			for _, a := range b.advance(15 * time.Second) {
				if s, ok := a.(SendHost); ok && ipoib.MAC(s.Frame) == ipoib.GroupMAC(ip("ff02::1")) {
					b.step(FromHost{append(newFrame(ipoib.GroupMAC(ip("ff02::16")), guestMAC, ipoib.EtherTypeIPv6), groupReport(recordIs, []netip.Addr{ip("ff05::1:3")})...)})
				}
			}
		}
		groups := 0
		for _, s := range b.table.Stations() {
			groups += len(s.Groups)
		}
		if n := b.table.Stats().Queries - before; n < 4 || groups == 0 {
			t.Errorf("query %s: %d queries of ours in 5 minutes, %d groups are left", c.what, n, groups)
		}
	}
}

func TestUnicastQueryForAnUnknownStation(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	q := ipoib.AppendMembershipQuery(nil, ip(ipB))
	copy(q[16:], ip("10.0.0.9").AsSlice())
	for _, a := range b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), q...), peerB.key(), false}) {
		if s, ok := a.(SendHost); ok && ipoib.MAC(s.Frame).IsMulticast() && !ipoib.MAC(s.Frame).IsBroadcast() {
			t.Errorf("a packet to 10.0.0.9 goes to %v", ipoib.MAC(s.Frame))
		}
	}
}

func TestForgedACKsTeachNothing(t *testing.T) {
	b := attachedBench(t, Config{})
	p := player{bench: b}
	b.meet(peerB, ipB)
	const guests = 300
	macs := make([]ipoib.MAC, guests)
	for i := range macs {
		macs[i] = ipoib.MAC{2, 2, 0, 0, byte(i >> 8), byte(i)}
		p.quickStep(claimOf(macs[i], fmt.Sprintf("10.1.%d.%d", i>>8, byte(i))))
	}
	n := 0
	for _, m := range macs {
		for range maxIPsPerStation {
			n++
			packet := dhcp(2, 5, fmt.Sprintf("10.66.%d.%d", n>>8, byte(n)), "255.255.255.255")
			copy(packet[28+28:], m[:])
			p.quickStep(fabricDHCP(peerB, packet, true))
		}
	}
	lost := 0
	for i := range macs {
		if b.table.host.stations.byIP[ip(fmt.Sprintf("10.1.%d.%d", i>>8, byte(i)))] == nil {
			lost++
		}
	}
	p.quickStep(claimOf(firstMAC, "10.0.0.8"))
	if lost > 0 || !b.table.host.stations.has(ip("10.0.0.8")) {
		t.Errorf("after %d forged answers: %d of %d stations have lost their address, a new one gets one: %t; %d addresses",
			n, lost, guests, b.table.host.stations.has(ip("10.0.0.8")), len(b.table.host.stations.byIP))
	}
}

func TestAnswerForADHCPRelay(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(claimOf(firstMAC, "10.0.0.8")) // the relay
	b.step(dhcpRequest(guestMAC, 0))
	answer := dhcp(2, 2, "10.0.0.77", "10.0.0.8")
	binary.BigEndian.PutUint16(answer[22:], 67) // to a relay (RFC 2131 section 4.1)
	copy(answer[28+24:], ip("10.0.0.8").AsSlice())
	for _, a := range b.step(fabricDHCP(peerB, answer, false)) {
		if s, ok := a.(SendHost); ok && ipoib.MAC(s.Frame) != firstMAC {
			t.Errorf("the answer to the relay goes to %v", ipoib.MAC(s.Frame))
		}
	}
}

func TestOnePeerLeavesRoomForSeeks(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.meet(peerC, ipC)
	for i := range 2 * maxResolutions {
		b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), ipPacket(ip(llB), ip(fmt.Sprintf("fe80::9:%x", i+1)))...), peerB.key(), false})
	}
	before := b.table.Stats().Seeks
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipC), ip("10.0.0.8"))...), peerC.key(), false})
	if b.table.Stats().Seeks == before {
		t.Error("no request for 10.0.0.8 was sent")
	}
}

func TestForgedClaimInterruptsNothing(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	b.step(claimOf(firstMAC, "10.0.0.8"))
	b.advance(latePause)
	b.step(fabricARP(peerC, ipoib.ARPRequest, "10.0.0.8", "10.0.0.8", true))
	b.advance(latePause)
	if m, ok := b.snap.StationMAC(ip("10.0.0.8")); m != firstMAC || !ok {
		t.Errorf("what peer B still sends here for 10.0.0.8 goes to %v, %t: large receives are dropped", m, ok)
	}
}

func TestGuestWithTheMACOfARemovedPeer(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	mac := b.macOf(peerB)
	b.advance(heardIdle + sweepInterval)
	if b.table.peers.past.byMAC[mac] == nil {
		t.Fatal("not remembered")
	}
	b.step(hostIP(mac, ipoib.Broadcast, ip("10.0.0.66"), ip("224.0.0.1")))
	before := b.table.Stats()
	b.step(hostIP(ownMAC, mac, ip(ipA), ip(ipB)))
	if after := b.table.Stats(); after.Drops[DropToSelf] != before.Drops[DropToSelf] {
		t.Error("the host's frame for the removed peer is dropped as one to a station, and not resolved")
	}
}

func TestLoopThroughAnotherHost(t *testing.T) {
	b := bridged(t)
	for _, m := range []ipoib.MAC{plainMAC(selfEnd.gid), rehashedMAC(selfEnd.gid, selfEnd.qpn, 1)} {
		for _, ev := range []FromHost{claimOf(m, "10.0.0.8"), hostIP(m, ipoib.Broadcast, ip("10.0.0.8"), ip("10.0.0.255"))} {
			for _, a := range b.step(ev) {
				if _, ok := a.(SendFabric); ok {
					t.Errorf("a frame from %v, which is this host on the fabric, is sent there again", m)
				}
			}
		}
		b.advance(latePause)
		if b.snap.FromHost(m) {
			t.Errorf("the data path passes on what comes from %v", m)
		}
	}
}
