package neigh

import (
	"net/netip"
	"testing"
	"time"

	"ipoibd/ud/ipoib"
)

// report is a report of the host's own station.
func report(groups ...netip.Addr) FromHost {
	return FromHost{append(newFrame(ipoib.MAC{1, 0, 0x5e, 0, 0, 22}, ownMAC, ipoib.EtherTypeIPv4), groupReport(recordJoin, groups)...)}
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

// TestPacketsForStations: what is wrong with a packet for an unknown station is counted, and the station is asked in a name
// that its sender has.
func TestPacketsForStations(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	message := func(packet []byte) FromFabric {
		return FromFabric{append(newMessage(ipoib.EtherTypeIPv4), packet...), peerB.gid, peerB.qpn, false}
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
	out := b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip("10.0.0.78"), ip("10.0.0.12"))...), e.gid, e.qpn, false})
	if arp, err := ipoib.ParseEtherARP(out[0].(SendHost).Frame[14:]); err != nil || arp.SPA != ip("10.0.0.78") {
		t.Errorf("%+v, %v", arp, err)
	}
}

