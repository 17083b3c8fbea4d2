package vm

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon with the software HCA in a guest and one in a namespace of this
// machine, on one segment, lose nothing of each other's messages, and every frame
// between them has the ICRC that its header asks for.
func TestSoftwareHCA(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 1500)
		g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0}}})}
		host := newHost(t, segment, 1)
		c := segment.Capture(roceFilter, filepath.Join(t.TempDir(), "wire.pcap"))
		g.Run("rmmod", "rdma_rxe") // it has the port of RoCEv2 as long as it is loaded
		a := newEndpoint(t, g, 0, "--underlay", "eth0")
		b := newEndpoint(t, host, 1, "--underlay", nstest.Dev)
		a.join()
		b.join()
		a.waitReaches(b)
		for i, e := range []*endpoint{a, b} {
			if got := e.iface(); got.QP == nil || got.QP.GID != nstest.IPv4(i) {
				t.Errorf("endpoint %d: %+v, want a queue pair with %s", i, got, nstest.IPv4(i))
			}
		}
		requireComplete(t, a, b)
		requireComplete(t, b, a)
		a.stop()
		c.Stop()
		seen := verifyWire(t, c)
		t.Logf("frames on the wire by sender: %v", seen)
		for i := range 2 {
			if n := seen[netip.MustParseAddr(nstest.IPv4(i))]; n < 4*messages {
				t.Errorf("host %d sent %d frames, fewer than its messages", i, n)
			}
		}
	})
}

// What is sent each way.
const (
	messages = 300
	size     = 1000 // bytes
	interval = 2 * time.Millisecond
)

// requireComplete counts messages from one endpoint to the other.
func requireComplete(t *testing.T, from, to *endpoint) {
	t.Helper()
	for _, way := range []struct{ address, device string }{
		{to.ip4(), ""}, {to.ip6(), ""}, {"239.1.2.3", ifName}, {"ff12::44%" + ifName, ifName},
	} {
		if c := count(t, from, to, way.address, way.device, messages, size, interval); !c.complete() {
			t.Errorf("endpoint %d to %s: %+v", from.number, way.address, c)
		}
	}
}
