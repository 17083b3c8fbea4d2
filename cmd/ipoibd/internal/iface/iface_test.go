package iface

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
)

// twoHosts runs a test with two hosts that are up and know each other.
func twoHosts(t *testing.T, test func(t *testing.T, a, b *testHost)) {
	pairOf(t, func(*testHost) {}, test)
}

// slowHosts is twoHosts; the test can slow down the verbs of the first host.
func slowHosts(t *testing.T, test func(t *testing.T, a, b *testHost)) {
	pairOf(t, func(h *testHost) { h.verbs = newVerbs() }, test)
}

// promptHosts is twoHosts; the verbs of the first host never block.
func promptHosts(t *testing.T, test func(t *testing.T, a, b *testHost)) {
	pairOf(t, func(h *testHost) { h.prompt = true }, test)
}

// pairOf runs a test with two hosts that reach each other. change changes the first one before it starts.
func pairOf(t *testing.T, change func(*testHost), test func(t *testing.T, a, b *testHost)) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a := bareHost(t, fabric, 1)
		change(a)
		a.run()
		b := newHost(t, fabric, 2)
		a.up()
		b.up()
		a.resolve(b.ip)
		test(t, a, b)
	})
}

// reach sends one packet each way, using the hosts' current knowledge, and checks it.
func reach(t *testing.T, a, b *testHost) {
	t.Helper()
	for _, way := range []struct{ from, to *testHost }{{a, b}, {b, a}} {
		mac, ok := way.from.neighbour(way.to.ip)
		if !ok {
			t.Fatalf("%s does not know %s", way.from.name, way.to.ip)
		}
		way.from.sendIP(mac, way.to.ip, 1444, 0x5a)
		f := way.to.takeIP()
		if f == nil {
			t.Fatalf("%s got nothing from %s", way.to.name, way.from.name)
		}
		if dst := ipoib.MAC(f[:6]); dst != way.to.mac() {
			t.Errorf("frame is for %s, the host is %s", dst, way.to.mac())
		}
		if len(f) != 14+1444 || !bytes.Equal(f[34:], bytes.Repeat([]byte{0x5a}, 1424)) {
			t.Errorf("%d bytes arrived, not as sent", len(f))
		}
	}
}

func TestTwoHostsReachEachOther(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		s := a.status()
		if s.State != report.InterfaceUp || !s.Carrier || s.QP == nil || s.QP.State != "RTS" || s.MTU != 1444 || s.Detail != "" {
			t.Errorf("status: %+v", s)
		}
		if len(s.Peers) != 1 || s.Peers[0].QPN != b.status().QP.QPN || s.Peers[0].Handle != "ready" {
			t.Errorf("peers: %+v", s.Peers)
		}
	})
}

// Setting ib0 down undoes all that setting it up did: no queue pair, no carrier, no datagram.
func TestDownSilences(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.tap.SetUp(false)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceDown || s.QP != nil || s.Carrier {
			t.Errorf("status: %+v", s)
		}
		var sent int
		a.fabric.Capture(func(c memfabric.Capture) {
			if c.From == a.name {
				sent++
			}
		})
		time.Sleep(time.Hour)
		synctest.Wait()
		a.fabric.Capture(nil)
		if sent != 0 {
			t.Errorf("%d datagrams while down", sent)
		}
		a.tap.SetUp(true)
		synctest.Wait()
		reach(t, a, b)
	})
}

func TestPortFlap(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.underlay().SetUp(false)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceWaiting || s.Carrier || !strings.Contains(s.Detail, "not active") {
			t.Errorf("port down: %+v", s)
		}
		a.underlay().SetUp(true)
		synctest.Wait()
		reach(t, a, b)
	})
}

// The netdev disappears and comes back: ib0 stays, and peers learn the new queue pair without
// asking.
func TestDeviceGoneAndBack(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		before := b.status().QP.QPN
		b.unplug()
		time.Sleep(qprecovery.CarrierBound)
		synctest.Wait()
		if s := b.status(); s.State != report.InterfaceWaiting || s.Carrier || s.QP != nil {
			t.Errorf("device gone: %+v", s)
		}
		time.Sleep(time.Minute)
		b.plug()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s := b.status()
		if s.State != report.InterfaceUp || s.QP.QPN == before {
			t.Fatalf("device back: %+v, QPN was %s", s, before)
		}
		reach(t, a, b)
		if peers := a.status().Peers; len(peers) != 1 || peers[0].QPN != s.QP.QPN {
			t.Errorf("a stale entry: %+v", peers)
		}
	})
}

func TestMTUFollowsUnderlay(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		qpn := a.status().QP.QPN
		a.tap.forget()
		for _, c := range []struct{ under, want int }{{9000, 4092}, {1500, 1444}, {1400, 1344}} {
			a.underlay().SetMTU(c.under)
			synctest.Wait()
			if s := a.status(); s.MTU != c.want || s.State != report.InterfaceUp || s.QP.QPN != qpn {
				t.Errorf("underlay %d: MTU %d, %s, QP %s; want %d, QP %s", c.under, s.MTU, s.State, s.QP.QPN, c.want, qpn)
			}
		}
		if flicker := a.tap.forget(); len(flicker) > 0 {
			t.Errorf("the carrier was set to %v", flicker)
		}
		a.tap.Fake.SetMTU(1300)
		synctest.Wait()
		a.underlay().SetMTU(9000)
		synctest.Wait()
		if s := a.status(); s.MTU != 1300 {
			t.Errorf("the operator's 1300 became %d", s.MTU)
		}
		a.tap.Fake.SetMTU(9000)
		synctest.Wait()
		if s := a.status(); s.MTU != 4092 {
			t.Errorf("9000 became %d, want 4092", s.MTU)
		}
		a.underlay().SetMTU(600)
		synctest.Wait()
		if s := a.status(); s.State != report.InterfaceWaiting || !strings.Contains(s.Detail, "raise the underlay's MTU by") {
			t.Errorf("underlay 600: %s, %s", s.State, s.Detail)
		}
	})
}

// A host whose neighbour cache outlived the daemon sends to a MAC that the daemon does not know.
// The first packet arrives nevertheless.
func TestFirstFramesToUnknownMACArrive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fabric := newFabric(t, 1)
		a, b := newHost(t, fabric, 1), newHost(t, fabric, 2)
		stale := ipoib.MAC{2, 9, 9, 9, 9, 9}
		a.tap.neighbours = []link.Neighbour{{IP: b.ip, MAC: stale}}
		a.up()
		b.up()
		for i := range byte(5) {
			a.sendIP(stale, b.ip, 100, i)
		}
		for i := range byte(5) {
			if f := b.takeIP(); f == nil || f[14+20] != i {
				t.Fatalf("packet %d: %x", i, f)
			}
		}
	})
}

// After a virtual hour on a lossy, slow, reordering network, everything works, and every frame is
// accounted for.
func TestHourOfBadNetwork(t *testing.T) {
	t.Parallel()
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.fabric.SetConditions(memfabric.Conditions{
			Loss: 0.2, Duplicate: 0.1, Reorder: 0.2, Delay: 3 * time.Millisecond, Jitter: 2 * time.Millisecond,
		})
		mac, _ := a.neighbour(b.ip)
		const sent = 3600
		got := 0
		for range sent {
			a.sendIP(mac, b.ip, 500, 1)
			time.Sleep(time.Second)
			for b.takeIP() != nil {
				got++
			}
		}
		t.Logf("%d packets sent, %d arrived", sent, got)
		if got < sent*70/100 || got > sent {
			t.Errorf("%d of %d arrived under 20 %% loss and 10 %% duplicates", got, sent)
		}
		a.fabric.SetConditions(memfabric.Conditions{})
		time.Sleep(time.Second)
		reach(t, a, b)
	})
}
