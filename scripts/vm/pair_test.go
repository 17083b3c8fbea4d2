package vm

import (
	"testing"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
)

// Two daemons on rxe, each in a guest, reach each other by IPv4 and IPv6 and lose no
// more packets than the link under them loses with the same load.
func TestTwoRxe(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	a, b := rxePair(t)
	requireEcho(t, a, b, a.mtu())
	requireEcho(t, b, a, b.mtu())
	requireComplete(t, a, b)
	for _, way := range []struct{ from, to *endpoint }{{a, b}, {b, a}} {
		requireNoWorse(t, way.from, way.to, way.to.ip4(), nstest.IPv4(way.to.number))
		requireNoWorse(t, way.from, way.to, way.to.ip6(), nstest.IPv6(way.to.number))
	}
}

// rxePair returns two guests, each with a daemon on rxe, with an IB MTU of 4096.
func rxePair(t *testing.T) (a, b *endpoint) {
	t.Helper()
	x, y := twoGuests(t, nstest.NewSegment(t, 4200))
	var ends []*endpoint
	for i, g := range []inGuest{x, y} {
		addRxe(g.Guest, rxe0, "eth0")
		g.Run("sysctl", "-q", "-w", "net.core.rmem_max="+socketBuffer, "net.core.rmem_default="+socketBuffer)
		e := newEndpoint(t, g, i, "--device", rxe0)
		e.join()
		ends = append(ends, e)
	}
	ends[0].waitReaches(ends[1])
	return ends[0], ends[1]
}

// socketBuffer, in bytes, is enough for two seconds of the traffic here, so that a
// receiver that waits for its processor does not lose packets that the path under
// test delivered.
const socketBuffer = "8388608"

// gentle is a load that guests carry without loss on a lossless link: 250 datagrams
// a second.
var gentle = []string{"--udp", "--bitrate", "2M", "--length", "1000", "--time", "2"}

// requireNoWorse compares the loss over ib0 with that over eth0, and logs the speed
// of TCP over both.
func requireNoWorse(t *testing.T, from, to *endpoint, ib, eth string) {
	t.Helper()
	before := from.books() + to.books()
	own := iperf(t, from, to, ib, gentle...)
	after := from.books() + to.books()
	base := iperf(t, from, to, eth, gentle...)
	t.Logf("to %s: %v; to %s: %v", ib, own, eth, base)
	if own.All == 0 || own.Lost > base.Lost {
		t.Errorf("lost %d of %d datagrams over ib0, %d of %d over eth0", own.Lost, own.All, base.Lost, base.All)
		t.Logf("sender and receiver before:\n%s\nafter:\n%s", before, after)
	}
	own, base = iperf(t, from, to, ib, "--time", "1"), iperf(t, from, to, eth, "--time", "1")
	t.Logf("to %s: %v; to %s: %v", ib, own, eth, base)
}

// books returns the counters on a datagram's way through an endpoint: those of its
// sockets, its interfaces, its daemon and its device.
func (e *endpoint) books() string {
	e.tb.Helper()
	return e.Run("cat", "/proc/net/snmp", "/proc/net/snmp6") + e.Run("ip", "-s", "link") + e.Run("ipoibd", "status", "-v", "--control", e.control)
}
