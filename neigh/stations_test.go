package neigh

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"ipoibd/ud/ipoib"
)

// check checks the bounds of s, and that its indexes agree.
func (s *stations) check() error {
	ips, macs := 0, 0
	for _, st := range slices.Concat([]*station{s.home}, s.list) {
		for _, ip := range st.ips {
			if ips++; s.byIP[ip] != st {
				return fmt.Errorf("%v is not at %v alone", ip, st.mac)
			}
		}
		if st == s.home {
			continue
		}
		macs++
		if s.byMAC[st.mac] != st || len(st.ips) > maxIPsPerStation {
			return fmt.Errorf("inconsistent station %+v", st)
		}
	}
	if macs != len(s.byMAC) || ips != len(s.byIP) || len(s.behind()) > maxStations+1 || ips > maxStationIPs || len(s.absent) > maxAbsent || len(s.home.ips) > maxHostAddrs {
		return fmt.Errorf("%d stations of %d with %d addresses of %d, %d absent, %d given", macs, len(s.byMAC), ips, len(s.byIP), len(s.absent), len(s.home.ips))
	}
	shown := allOf(s.places.table)
	for k, mac := range shown {
		ip := netip.AddrFrom16(k).Unmap()
		if want, ok := s.place(ip); !ok || want != mac {
			return fmt.Errorf("%v is shown at %v, is at %v", ip, mac, want)
		}
	}
	if len(shown) != len(s.byIP)+len(s.absent) {
		return fmt.Errorf("%d addresses are shown, want %d and %d", len(shown), len(s.byIP), len(s.absent))
	}
	return nil
}

var firstMAC, secondMAC = ipoib.MAC{2, 0xbb}, ipoib.MAC{2, 0xcc}

// TestInventedStations: one station invents MACs as fast as it can. The number of stations is bounded, and those with an
// address stay.
func TestInventedStations(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(hostARP(firstMAC, ipoib.Broadcast, ipoib.ARPRequest, "10.0.0.8", ipB))
	for i := range 3 * maxStations {
		m := ipoib.MAC{2, 1, byte(i >> 16), byte(i >> 8), byte(i)}
		b.step(hostIP(m, ipoib.Broadcast, ip(ipA), ip("224.0.0.1")))
	}
	if n := len(b.table.host.stations.behind()); n != maxStations || b.table.host.stations.dest(ip("10.0.0.8")) != firstMAC {
		t.Errorf("%d stations, the first one known: %t", n, b.table.host.stations.dest(ip("10.0.0.8")) == firstMAC)
	}
	// With an address each, they fill the table until they have been silent for long.
	for i := range 2 * maxStations {
		m := ipoib.MAC{2, 2, byte(i >> 16), byte(i >> 8), byte(i)}
		b.step(hostARP(m, ipoib.Broadcast, ipoib.ARPRequest, fmt.Sprintf("10.1.%d.%d", i>>8, byte(i)), ipB))
	}
	if n := b.table.Stats().Drops[DropStationsFull]; n < maxStations || b.table.host.stations.dest(ip("10.0.0.8")) != firstMAC {
		t.Errorf("%d refused", n)
	}
	b.advance(stationAge + sweepInterval)
	if n := len(b.table.host.stations.behind()); n != 0 {
		t.Errorf("%d stations are left", n)
	}
}

// TestStationsAgeByTheirFrames: a station whose frames pass through the data path stays.
func TestStationsAgeByTheirFrames(t *testing.T) {
	b := attachedBench(t, Config{})
	b.step(hostARP(firstMAC, ipoib.Broadcast, ipoib.ARPRequest, "10.0.0.8", ipB))
	b.step(hostARP(secondMAC, ipoib.Broadcast, ipoib.ARPRequest, "10.0.0.9", ipB))
	b.advance(latePause)
	for range 6 {
		b.advance(time.Minute)
		if !b.snap.FromHost(firstMAC) {
			t.Fatal("the station is not known to the data path")
		}
	}
	if h := &b.table.host.stations; h.dest(ip("10.0.0.8")) != firstMAC || h.byMAC[secondMAC] != nil || b.snap.FromHost(secondMAC) {
		t.Errorf("stations %+v", b.table.Stations())
	}
	b.advance(stationAge + 2*sweepInterval)
	if b.table.host.stations.is(firstMAC) {
		t.Error("the station stays although no more frames pass")
	}
}

// fullStations are as many stations behind ib0 as there may be, which have sent one after the other.
func fullStations(now time.Time, withAddress bool) *stations {
	s := new(stations)
	s.init()
	s.setOwn(ownMAC, now)
	for i := range maxStations {
		s.admit(numberedMAC(i), now.Add(time.Duration(i)*time.Millisecond))
		if withAddress {
			s.claim(numberedMAC(i), netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}))
		}
	}
	return s
}

func numberedMAC(i int) ipoib.MAC { return ipoib.MAC{2, 2, 0, 0, byte(i >> 8), byte(i)} }

// TestWhoMakesRoom: for a new station, the one without an address that has been silent for longest makes room, or else
// one with an address that has been silent for stationAge. The bridge stays.
func TestWhoMakesRoom(t *testing.T) {
	start := time.Unix(1e9, 0)
	const second, last = 1, maxStations - 1
	for _, c := range []struct {
		what        string
		withAddress bool
		after       time.Duration
		prepare     func(*stations)
		want        int // who goes; -1: no one
	}{
		{"without addresses, the first", false, time.Minute, func(*stations) {}, 0},
		{"without addresses, not the bridge", false, time.Minute, func(s *stations) { s.setMaster(numberedMAC(0), start) }, second},
		{"the first has sent again", false, time.Minute, func(s *stations) { s.admit(numberedMAC(0), start.Add(2*time.Second)) }, second},
		{"the first without an address", true, time.Minute, func(s *stations) {
			s.vacateAll(s.byMAC[numberedMAC(last)])
			s.vacateAll(s.byMAC[numberedMAC(last-1)])
		}, last - 1},
		{"all but the last without an address", false, time.Minute, func(s *stations) { s.claim(numberedMAC(0), ip("10.0.0.8")) }, second},
		{"with addresses, too early", true, stationAge - 1, func(*stations) {}, -1},
		{"with addresses, the first", true, stationAge, func(*stations) {}, 0},
		{"with addresses, the first has sent again", true, stationAge + time.Second, func(s *stations) { s.admit(numberedMAC(0), start.Add(2*time.Second)) }, second},
	} {
		s := fullStations(start, c.withAddress)
		c.prepare(s)
		if got := s.admit(secondMAC, start.Add(c.after)); got != (c.want >= 0) || s.is(secondMAC) != got {
			t.Errorf("%s: admitted %t", c.what, got)
		}
		for i := range maxStations {
			if s.is(numberedMAC(i)) == (i == c.want) {
				t.Errorf("%s: station %d is known: %t", c.what, i, i != c.want)
			}
		}
	}
}

// TestBridgeHasRoom: frames of the bridge pass, however many stations there are.
func TestBridgeHasRoom(t *testing.T) {
	start := time.Unix(1e9, 0)
	s := fullStations(start, true)
	s.setMaster(firstMAC, start)
	if s.admit(secondMAC, start.Add(time.Minute)) || !s.admit(firstMAC, start.Add(time.Minute)) || len(s.behind()) != maxStations+1 {
		t.Errorf("%d stations, the bridge known: %t", len(s.behind()), s.is(firstMAC))
	}
}

// TestFullIsReported: the statistics say so when there is no room for another MAC, or for another address.
func TestFullIsReported(t *testing.T) {
	b := attachedBench(t, Config{})
	p := player{bench: b}
	for i := range maxStations {
		if b.table.Stats().StationsFull {
			t.Fatalf("full with %d stations", i)
		}
		p.quickStep(hostIP(numberedMAC(i), ipoib.Broadcast, ip("10.0.0.8"), ip("224.0.0.1")))
	}
	if !b.table.Stats().StationsFull {
		t.Error("not full of stations")
	}
	b = attachedBench(t, Config{})
	p = player{bench: b}
	for i := range maxStationIPs - 2 { // the host has two
		if b.table.Stats().StationsFull {
			t.Fatalf("full with %d addresses", i)
		}
		p.quickStep(claimOf(numberedMAC(i/maxIPsPerStation), fmt.Sprintf("10.1.%d.%d", i>>8, byte(i))))
	}
	if !b.table.Stats().StationsFull {
		t.Error("not full of addresses")
	}
}

// TestRepeatedClaimChangesNothing: a station that claims its address again, as by each ARP request, loses none of the
// others, and makes no snapshot.
func TestRepeatedClaimChangesNothing(t *testing.T) {
	b := attachedBench(t, Config{})
	for i := range maxIPsPerStation {
		b.step(claimOf(firstMAC, fmt.Sprintf("10.0.1.%d", i)))
	}
	b.advance(latePause)
	epoch := b.snap.Epoch()
	for i := range maxIPsPerStation {
		b.step(claimOf(firstMAC, fmt.Sprintf("10.0.1.%d", i)))
	}
	b.advance(latePause)
	if n := len(b.table.host.stations.byMAC[firstMAC].ips); n != maxIPsPerStation || b.snap.Epoch() != epoch || b.table.Stats().AddressesFull != 0 {
		t.Errorf("%d addresses are left, %d snapshots, %d refused", n, b.snap.Epoch()-epoch, b.table.Stats().AddressesFull)
	}
}

// TestAddressesMoveInAFullTable: with as many addresses as there may be, a new one is refused, and counted. One that is
// known moves to the station that claims it.
func TestAddressesMoveInAFullTable(t *testing.T) {
	b := attachedBench(t, Config{})
	p := player{bench: b}
	for i := range maxStationIPs - 2 { // the host has two
		p.quickStep(claimOf(numberedMAC(i/maxIPsPerStation), fmt.Sprintf("10.1.%d.%d", i>>8, byte(i))))
	}
	if n := b.table.Stats().AddressesFull; n != 0 {
		t.Errorf("%d refused while there is room", n)
	}
	b.step(claimOf(firstMAC, "10.0.0.8"))
	if n := b.table.Stats().AddressesFull; n != 1 || b.table.host.stations.has(ip("10.0.0.8")) {
		t.Errorf("%d refused; the new one is known: %t", n, b.table.host.stations.has(ip("10.0.0.8")))
	}
	b.step(claimOf(firstMAC, "10.1.0.7"))
	if m := b.table.host.stations.dest(ip("10.1.0.7")); m != firstMAC || b.table.Stats().AddressesFull != 1 {
		t.Errorf("10.1.0.7 is at %v", m)
	}
}

// TestAbsencesAreBounded: not more than maxAbsent addresses are remembered that no station has. The others are asked for
// again.
func TestAbsencesAreBounded(t *testing.T) {
	var s stations
	s.init()
	s.setGiven([]netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")})
	for i := range 2 * maxAbsent {
		s.lacks(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), time.Time{})
	}
	if len(s.absent) != maxAbsent {
		t.Errorf("%d addresses are absent, want %d", len(s.absent), maxAbsent)
	}
}

// TestNetworkOfAnAddressChanges: what the data path knows about an address depends on the network, also if only the length
// of its prefix changes.
func TestNetworkOfAnAddressChanges(t *testing.T) {
	b := attachedBench(t, Config{})
	for _, c := range []struct {
		prefix string
		local  bool
	}{{"10.0.0.1/24", false}, {"10.0.0.1/16", true}, {"10.0.0.1/24", false}} {
		b.step(HostAddrs{[]netip.Prefix{netip.MustParsePrefix(c.prefix)}})
		b.advance(latePause)
		if m, ok := b.snap.StationMAC(ip("10.0.1.9")); ok == c.local {
			t.Errorf("%s: 10.0.1.9 is at %v, known: %t", c.prefix, m, ok)
		}
	}
}

// TestAnotherBridgeKnowsNoStations: if ib0 becomes a port of another bridge, what ib0's own MAC has claimed is forgotten as
// well, and that no station has an address.
func TestAnotherBridgeKnowsNoStations(t *testing.T) {
	b := bridged(t)
	b.step(claimOf(ownMAC, "10.0.0.8"))
	b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv4), ipPacket(ip(ipB), ip("10.0.0.9"))...), peerB.key(), false})
	b.advance(2 * time.Second)
	for _, addr := range []string{"10.0.0.8", "10.0.0.9"} {
		if _, ok := b.snap.StationMAC(ip(addr)); !ok {
			t.Errorf("%s is not known", addr)
		}
	}
	b.step(HostPort{Up: true, Bridge: 6, Master: secondMAC})
	for _, addr := range []string{"10.0.0.8", "10.0.0.9"} {
		if m, ok := b.snap.StationMAC(ip(addr)); ok {
			t.Errorf("%s is at %v still", addr, m)
		}
	}
}

// BenchmarkStations measures what the data path looks up for a frame each way, with a number of stations behind ib0.
func BenchmarkStations(b *testing.B) {
	for _, n := range []int{0, 1, 100, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			bench := attachedBench(b, Config{})
			macs, ips := []ipoib.MAC{ownMAC}, []netip.Addr{ip(ipA)}
			for i := range n {
				m, addr := ipoib.MAC{2, 7, 0, 0, byte(i >> 8), byte(i)}, netip.AddrFrom4([4]byte{10, 0, 1 + byte(i>>8), byte(i)})
				bench.step(hostARP(m, ipoib.Broadcast, ipoib.ARPRequest, addr.String(), ipB))
				macs, ips = append(macs, m), append(ips, addr)
			}
			bench.advance(latePause)
			s := bench.snap
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				i = (i + 7) % len(ips)
				if _, ok := s.StationMAC(ips[i]); !ok || !s.FromHost(macs[i]) {
					b.Fatal(ips[i], macs[i])
				}
			}
		})
	}
}

// TestUnknownAddressesLeaveRoom: what the fabric sends to invented addresses does not take the room for frames that the
// host sends to an address that is being resolved.
func TestUnknownAddressesLeaveRoom(t *testing.T) {
	b := attachedBench(t, Config{})
	b.meet(peerB, ipB)
	big := append(ipPacket(ip(llB), ip("fe80::9:0")), make([]byte, 1900)...)
	for i := range 2 * maxKeptBytes / len(big) {
		packet := append([]byte(nil), big...)
		packet[39] = byte(i % 200)
		b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), packet...), peerB.key(), false})
	}
	before := b.table.Stats()
	if before.Drops[DropKeptBytes] == 0 {
		t.Fatal("nothing was refused")
	}
	b.step(hostIP(ownMAC, ipoib.MAC{2, 0x99}, ip(ipA), ip("10.0.0.200")))
	if after := b.table.Stats(); after.Kept != before.Kept+1 {
		t.Errorf("the host's frame was not kept: %+v", after.Drops)
	}
}

// A frame that was kept claims nothing once it is sent: the address of its sender may have moved to a peer meanwhile.
func TestKeptFrameClaimsNothing(t *testing.T) {
	guest, stranger := ipoib.MAC{2, 5, 0, 0, 0, 1}, ipoib.MAC{2, 5, 0, 0, 0, 2}
	const moves, moves6 = "10.0.0.50", "fd00::50"
	for _, c := range []struct {
		name, ip, unknown string
		kept              FromHost
		claim, answer     FromFabric
	}{
		{
			"ARP", moves, "10.0.0.60", hostARP(guest, stranger, ipoib.ARPRequest, moves, "10.0.0.60"),
			fabricARP(peerB, ipoib.ARPRequest, moves, moves, true), fabricARP(peerC, ipoib.ARPReply, "10.0.0.60", ipA, false),
		},
		{
			"ND", moves6, "fd00::60",
			hostND(guest, stranger, nd(ipoib.NDNeighborSolicit, ip(moves6), ip("fd00::60"), ip("fd00::60"), etherLink(ipoib.OptionSourceLink, guest))),
			fabricND(peerB, nd(ipoib.NDNeighborAdvert, ip(moves6), ip("ff02::1"), ip(moves6), ipoibLink(ipoib.OptionTargetLink, peerB))),
			fabricND(peerC, nd(ipoib.NDNeighborAdvert, ip("fd00::60"), ip(moves6), ip("fd00::60"), ipoibLink(ipoib.OptionTargetLink, peerC))),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := knownBench(t)
			b.step(given(ip(ipA), ip("fd00::1")))
			b.step(c.kept)
			if st := b.table.host.stations.byIP[ip(c.ip)]; st == nil || st.mac != guest || b.table.Stats().Kept != 1 {
				t.Fatalf("%s is at %+v, %d frames kept", c.ip, st, b.table.Stats().Kept)
			}
			b.step(c.claim)
			sent := b.table.Stats().KeptSent
			b.ready(b.step(c.answer))
			if b.table.Stats().KeptSent != sent+1 {
				t.Fatal("the kept frame was not sent")
			}
			if p := b.table.peers.live.byIP[ip(c.ip)]; p == nil || p.endpoint != peerB || b.table.host.stations.has(ip(c.ip)) {
				t.Errorf("%s went back to the guest; the peer with it is %+v", c.ip, p)
			}
		})
	}
}
