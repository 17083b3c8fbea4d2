package vm

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// A daemon on rxe and one with the software HCA exchange IPv4 and IPv6 messages and
// streams of large frames, over an IPv4 and an IPv6 underlay and with every IB MTU,
// without loss of messages in either direction, and every frame on the wire is correct, also
// those that the fast path of the software HCA has built. Each kernel has every second pair of an
// MTU and an underlay, and the other one has the rest; the long form has all on both.
func TestRxeWithSoftwareHCA(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 4200)
		g := newRxeGuest(t, series, segment)
		host := newHost(t, segment)
		nth := slices.Index(kernel.AllSeries, series)
		for i, mtu := range underlayMTUs {
			for _, m := range []machine{g, host} {
				m.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(mtu.underlay))
			}
			for j, f := range families {
				if (i+j+nth)%2 != 0 && !guest.Soak() {
					continue
				}
				t.Logf("%s underlay, IB MTU %d", f.name, mtu.ib)
				c := segment.Capture(roceFilter, filepath.Join(t.TempDir(), fmt.Sprint(f.name, mtu.ib)))
				a := newEndpoint(t, g, 0, "--remove", "--device", rxe0, "--gid", f.address(0))
				b := newEndpoint(t, host, 1, "--remove", "--underlay", "eth0", "--gid", f.address(1), "--standard-mtu", "--fast-path")
				requireTraffic(t, a, b, mtu.ib-4) // RFC 4391, section 6: the header
				requireFast(t, b, a)
				var captured string
				if mtu == underlayMTUs[0] {
					captured = captureEcho(t, a, b)
				}
				a.stop()
				b.stop()
				c.Stop()
				requireFrames(t, c, netip.MustParseAddr(f.address(0)), netip.MustParseAddr(f.address(1)))
				if captured != "" {
					requireCaptured(t, captured, c, netip.MustParseAddr(f.address(0)), netip.MustParseAddr(f.address(1)))
				}
			}
		}
	})
}

// requireTraffic brings two endpoints up, checks the MTU of ib0, and sends echo
// requests of that size, counted messages, and streams as fast as they can carry.
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
	requireStream(t, a, b, b.ip4())
	requireStream(t, b, a, a.ip4())
	if a.hasIPv6() {
		requireStream(t, a, b, b.ip6())
		requireStream(t, b, a, a.ip6())
	}
}

// streamed is how many bytes requireStream sends.
const streamed = 2 << 20

// requireStream sends a stream of TCP. It must arrive undamaged, and the sender must have cut
// large frames.
func requireStream(t *testing.T, from, to *endpoint, address string) {
	t.Helper()
	at := net.JoinHostPort(address, "5400")
	drain := to.start("numbered", "drain", at)
	waitPrints(t, drain, "listening")
	_, before := from.status()
	start := time.Now()
	sent := from.Run("numbered", "pour", at, fmt.Sprint(streamed))
	awaitExit(t, drain)
	took := time.Since(start)
	_, after := from.status()
	if _, received, _ := strings.Cut(drain.Stdout(), "\n"); received == "" || received != sent {
		t.Errorf("to %s: sent %s, received %s%s", address, sent, received, drain.Stderr())
	}
	large, pieces := after.count("tx_large")-before.count("tx_large"), after.count("tx_segments")-before.count("tx_segments")
	t.Logf("to %s: %d bytes in %v, %d large frames in %d segments", address, streamed, took.Round(time.Millisecond), large, pieces)
	if large == 0 || pieces < 2*large {
		t.Errorf("to %s: %d large frames in %d segments", address, large, pieces)
	}
}

// requireEcho sends echo requests that fill the MTU; none may be lost.
func requireEcho(t *testing.T, from, to *endpoint, mtu int) {
	t.Helper()
	ping(t, from, to.ip4(), 5, mtu-20-8) // IPv4 and ICMP headers
	if to.hasIPv6() {
		ping(t, from, to.ip6(), 5, mtu-40-8)
	}
}

// requireFrames verifies a capture. It must have frames of both senders.
func requireFrames(t *testing.T, c *nstest.Capture, rxe, software netip.Addr) {
	t.Helper()
	seen := verifyWire(t, c, rxe, software)
	t.Logf("verified frames by sender: %v", seen)
	for _, sender := range []netip.Addr{rxe, software} {
		if n := seen[sender]; n < 3*messages {
			t.Errorf("%v sent %d frames, want at least one per message", sender, n)
		}
	}
}
