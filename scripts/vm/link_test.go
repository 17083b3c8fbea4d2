package vm

import (
	"fmt"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// Two guests on one segment reach each other. The losses that iperf3 reports here
// are those of the link itself, for comparison with ib0 on the same link.
func TestSegment(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	segment := nstest.NewSegment(t, 4200)
	a, b := twoGuests(t, segment)
	for _, mtu := range []int{4200, 1500} {
		for _, g := range []machine{a, b} {
			g.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu))
		}
		ping(t, a, nstest.IPv4(1), 10, mtu-20-8) // IPv4 and ICMP headers
		ping(t, b, nstest.IPv6(0), 10, mtu-40-8)
		for _, args := range [][]string{nil, {"--udp", "--bitrate", "10M", "--length", fmt.Sprint(mtu - 28)}} {
			l := iperf(t, a, b, nstest.IPv4(1), args...)
			t.Logf("MTU %d: %v", mtu, l)
			if l.Mbps == 0 || l.Lost == l.All && l.All > 0 {
				t.Errorf("MTU %d: no traffic got through: %v", mtu, l)
			}
		}
	}
}

// twoGuests boots hosts 0 and 1 of a segment, with the oldest and the newest kernel.
func twoGuests(t *testing.T, segment *nstest.Segment) (a, b inGuest) {
	t.Helper()
	var specs []guest.Spec
	for i, series := range []kernel.Series{kernel.Oldest, kernel.Newest} {
		specs = append(specs, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: i}}})
	}
	guests := guest.BootAll(t, specs...)
	return inGuest{guests[0]}, inGuest{guests[1]}
}
