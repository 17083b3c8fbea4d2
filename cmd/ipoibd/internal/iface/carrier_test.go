package iface

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery"
)

// The kernel forgets its neighbours with the carrier. Each time that it is back,
// those whom the host waits for are asked for in its name, at once; after an
// outage that the carrier outlasts nobody is.
func TestR09HostIsAnsweredOnceItsCarrierIsBack(t *testing.T) {
	for _, c := range []struct {
		name    string
		outages []time.Duration // with a moment of service between them
		asked   uint64
	}{
		{"carrier outlasts it", []time.Duration{qprecovery.DefaultCarrierBound / 2}, 0},
		{"carrier down", []time.Duration{qprecovery.DefaultCarrierBound * 2}, 1},
		{"carrier down twice", []time.Duration{qprecovery.DefaultCarrierBound * 5 / 4, qprecovery.DefaultCarrierBound * 5 / 4}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				a.waitFor(b.ip)
				time.Sleep(time.Second)
				before := count(a.status(), "neigh_requests")
				for _, outage := range c.outages {
					a.unplug()
					synctest.Wait()
					time.Sleep(outage)
					a.forgetNeighbours()
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

// waitFor has the host's stack wait for answers about ips.
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
