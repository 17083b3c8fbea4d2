package iface

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery"
)

// The kernel forgets its neighbours with the carrier. Each time that the carrier is back, the
// interface asks at once for the neighbours that the host waits for. It does not ask after an
// outage that kept the carrier.
func TestR09HostIsAnsweredOnceItsCarrierIsBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		outages []time.Duration // with a moment of service between them
		asked   uint64
	}{
		{"carrier outlasts it", []time.Duration{qprecovery.CarrierBound / 2}, 0},
		{"carrier down", []time.Duration{qprecovery.CarrierBound * 2}, 1},
		{"carrier down twice", []time.Duration{qprecovery.CarrierBound * 5 / 4, qprecovery.CarrierBound * 5 / 4}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				time.Sleep(time.Second)
				before := count(a.status(), "neigh_requests")
				for _, outage := range c.outages {
					a.unplug()
					synctest.Wait()
					time.Sleep(outage)
					a.forgetNeighbours()
					a.waitFor(b.ip)
					a.plug()
					time.Sleep(100 * time.Millisecond)
				}
				if n := count(a.status(), "neigh_requests") - before; n != c.asked {
					t.Errorf("asked %d times in the host's name, want %d", n, c.asked)
				}
				if _, known := a.neighbour(b.ip); known != (c.asked > 0) {
					t.Errorf("the host knows its neighbour: %t", known)
				}
				checkAccounts(t, a.status())
			})
		})
	}
}

// Neighbours that do not answer are asked for once at each planned time.
func TestR09HostIsAskedForAgain(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		a.waitFor(netip.MustParseAddr("10.0.0.99"))
		before := count(a.status(), "neigh_requests")
		a.light(false)
		time.Sleep(time.Second)
		a.light(true)
		for round, at := range askTimes {
			time.Sleep(at - askTimes[max(round-1, 0)])
			synctest.Wait()
			if n := count(a.status(), "neigh_requests") - before; n != uint64(round+1) {
				t.Errorf("asked %d times %v after the carrier came back, want %d", n, at, round+1)
			}
		}
		time.Sleep(time.Minute)
		if n := count(a.status(), "neigh_requests") - before; n != uint64(len(askTimes)) {
			t.Errorf("asked %d times in all, want %d", n, len(askTimes))
		}
	})
}

// A report of the kernel that was made before the daemon raised the carrier, and that comes afterwards, does
// not change the status: a client that has seen the carrier may ask at once.
func TestLateReportDoesNotHideTheCarrier(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		old, err := a.tap.State()
		if err != nil || !old.Carrier {
			t.Fatalf("%+v, %v", old, err)
		}
		old.Carrier = false
		if err := a.iface.do(t.Context(), func() { a.iface.hostChanged(old) }); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := a.status(); !s.Carrier {
			t.Errorf("%s, without a carrier", s.State)
		}
	})
}

// waitFor makes the host's stack wait for answers about ips.
func (h *testHost) waitFor(ips ...netip.Addr) {
	h.tap.mu.Lock()
	defer h.tap.mu.Unlock()
	h.tap.unresolved = ips
}

// forgetNeighbours is what a kernel does without a carrier.
func (h *testHost) forgetNeighbours() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.arp)
}
