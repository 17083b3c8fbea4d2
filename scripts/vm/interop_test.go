package vm

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// rxe0 is the Soft-RoCE device of a guest, on eth0.
const rxe0 = "rxe0"

// underlayMTUs maps an underlay's MTU to the IB MTU of ports on it: the largest
// standard one that leaves rxe 80 bytes for its headers (rxe_hdr.h,
// RXE_MAX_HDR_LENGTH).
var underlayMTUs = []struct{ underlay, ib int }{
	{1500, 1024},
	{2200, 2048},
	{4200, 4096},
}

// family is an IP version of the underlay.
type family struct {
	name    string
	address func(host int) string
}

var families = []family{{"IPv4", nstest.IPv4}, {"IPv6", nstest.IPv6}}

// A daemon on rxe and one with the software HCA exchange IPv4 and IPv6 messages,
// over an IPv4 and an IPv6 underlay and with every IB MTU, without loss in either
// direction, and every frame has the right ICRC.
func TestRxeWithSoftwareHCA(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 4200)
		g := newRxeGuest(t, series, segment)
		host := newHost(t, segment)
		for _, mtu := range underlayMTUs {
			for _, m := range []machine{g, host} {
				m.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu.underlay))
			}
			for _, f := range families {
				t.Logf("%s underlay, IB MTU %d", f.name, mtu.ib)
				c := segment.Capture(roceFilter, filepath.Join(t.TempDir(), fmt.Sprint(f.name, mtu.ib)))
				a := newEndpoint(t, g, 0, "--remove", "--device", rxe0, "--gid", f.address(0))
				b := newEndpoint(t, host, 1, "--remove", "--underlay", "eth0", "--gid", f.address(1), "--standard-mtu")
				requireTraffic(t, a, b, mtu.ib-4) // RFC 4391, section 6: the header
				a.stop()
				b.stop()
				c.Stop()
				requireFrames(t, c, f.address(0), f.address(1))
			}
		}
	})
}

// requireTraffic brings two endpoints up, checks the MTU of ib0, and sends echo
// requests of that size, counted messages, and as much traffic as they can carry.
func requireTraffic(t *testing.T, a, b *endpoint, mtu int) {
	t.Helper()
	a.join()
	b.join()
	a.waitReaches(b)
	if a.mtu() != mtu || b.mtu() != mtu {
		t.Errorf("MTUs %d and %d, want %d", a.mtu(), b.mtu(), mtu)
	}
	requireEcho(t, a, b, mtu)
	requireEcho(t, b, a, mtu)
	requireComplete(t, a, b)
	t.Logf("endpoint 0 to 1: %v", iperf(t, a, b, b.ip4(), "--time", "1"))
	t.Logf("endpoint 1 to 0: %v", iperf(t, b, a, a.ip4(), "--time", "1"))
}

// requireEcho sends echo requests that fill the MTU; none may be lost.
func requireEcho(t *testing.T, from, to *endpoint, mtu int) {
	t.Helper()
	ping(t, from, to.ip4(), 5, mtu-20-8) // IPv4 and ICMP headers
	if to.hasIPv6() {
		ping(t, from, to.ip6(), 5, mtu-40-8)
	}
}

// requireFrames verifies a capture. It must have frames of all senders.
func requireFrames(t *testing.T, c *nstest.Capture, senders ...string) {
	t.Helper()
	seen := verifyWire(t, c)
	t.Logf("verified frames by sender: %v", seen)
	for _, s := range senders {
		if n := seen[netip.MustParseAddr(s)]; n < 3*messages {
			t.Errorf("%s sent %d frames, want at least one per message", s, n)
		}
	}
}
