package vm

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon with the software HCA in a guest and one in a namespace of this machine
// exchange messages over one segment without loss, and every frame between them has
// the right ICRC. The fast path of each kernel carries the small ones of its guest.
func TestSoftwareHCA(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 1500)
		g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0}}})}
		host := newHost(t, segment)
		c := segment.Capture(roceFilter, filepath.Join(t.TempDir(), "wire.pcap"))
		g.Run("rmmod", "rdma_rxe") // it holds the RoCEv2 port while it is loaded
		a := newEndpoint(t, g, 0, "--underlay", "eth0", "--fast-path")
		b := newEndpoint(t, host, 1, "--underlay", nstest.Dev)
		a.join()
		b.join()
		a.waitReaches(b)
		for i, e := range []*endpoint{a, b} {
			if _, got := e.status(); got.QP == nil || got.QP.GID != nstest.IPv4(i) {
				t.Errorf("endpoint %d: %+v, want a queue pair with %s", i, got, nstest.IPv4(i))
			}
		}
		requireComplete(t, a, b)
		requireFast(t, a, b)
		a.stop()
		c.Stop()
		seen := verifyWire(t, c, netip.MustParseAddr(nstest.IPv4(0)))
		t.Logf("frames on the wire by sender: %v", seen)
		for i := range 2 {
			if n := seen[netip.MustParseAddr(nstest.IPv4(i))]; n < 4*messages {
				t.Errorf("host %d sent %d frames, want at least one per message", i, n)
			}
		}
	})
}

// requireComplete sends this many messages on each flow, one per interval. All flows together are
// 100 messages a second from each guest: an emulated one on a machine that is busy with other work
// carries some hundreds.
const (
	messages = 200
	interval = 50 * time.Millisecond
)

// requireComplete sends messages that fill ib0's MTU between two endpoints, in both
// directions, to every kind of address. All must arrive. The kernels must have
// resolved each other's addresses before, because they queue only a few packets for
// an unresolved neighbour.
func requireComplete(t *testing.T, a, b *endpoint) {
	t.Helper()
	a.waitReaches(b)
	b.waitReaches(a)
	flows := append(flowsTo(a, b), flowsTo(b, a)...)
	before := a.books() + b.books()
	lost := false
	for i, c := range count(t, flows, burst{messages, a.mtu() - 40 - 8, interval}) { // IPv6 and UDP headers
		if !c.complete() {
			t.Errorf("to %s: %+v, want every message once", flows[i].address, c)
			lost = true
		}
	}
	t.Logf("%d flows of %d messages", len(flows), messages)
	if lost {
		t.Logf("both endpoints before:\n%s\nafter:\n%s", before, a.books()+b.books())
	}
}

// requireFast sends small echo requests to another endpoint until the fast path carries all of them and their replies.
func requireFast(t *testing.T, from, to *endpoint) {
	t.Helper()
	carried := func() int {
		_, s := from.status()
		return min(s.count("fast_tx_packets"), s.count("fast_rx_packets"))
	}
	addresses := []string{to.ip4()}
	if to.hasIPv6() {
		addresses = append(addresses, to.ip6())
	}
	for _, address := range addresses {
		eventually(t, "the fast path carries echo requests to "+address, func() bool {
			const count = 5
			before := carried()
			ping(t, from, address, count, 64)
			return carried()-before >= count
		})
	}
}

// flowsTo returns a flow to each kind of address of an endpoint.
func flowsTo(from, to *endpoint) []flow {
	flows := []flow{
		{from, to, to.ip4(), ""},
		{from, to, broadcast, ""},
		{from, to, fmt.Sprintf("239.1.2.%d", to.number+1), ifName},
	}
	if to.hasIPv6() {
		flows = append(flows,
			flow{from, to, to.ip6(), ""},
			flow{from, to, fmt.Sprintf("ff12::44:%d%%%s", to.number+1, ifName), ifName})
	}
	return flows
}
