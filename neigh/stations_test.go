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
		b.step(FromFabric{append(newMessage(ipoib.EtherTypeIPv6), packet...), peerB.gid, peerB.qpn, false})
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
