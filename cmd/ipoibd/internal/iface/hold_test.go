package iface

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// From the first suspicion until health the host's frames stay in the TAP's
// queue, and go on behind it; the carrier goes down only where that lasts longer
// than its bound, and comes back.
func TestR09FramesAreHeld(t *testing.T) {
	const frames = 5
	for _, c := range []struct {
		name     string
		lasts    time.Duration
		carriers []bool
	}{
		{"short", qprecovery.DefaultCarrierBound / 2, nil},
		{"long", qprecovery.DefaultCarrierBound * 5 / 4, []bool{false, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				reach(t, a, b)
				a.tap.forget()
				a.inject(faults.Fault{Kind: faults.SendErrorSQE}, faults.Fault{Kind: faults.VerbHangs, Verb: "query_qp"})
				mac, _ := a.neighbour(b.ip)
				a.sendIP(mac, b.ip, 100, 0) // which fails
				time.Sleep(20 * time.Millisecond)
				before := count(a.status(), "tx_read")
				for i := range byte(frames) {
					a.sendIP(mac, b.ip, 100, i)
				}
				time.Sleep(c.lasts)
				synctest.Wait()
				if s := a.status(); count(s, "tx_read") != before || s.Recovery.State != "querying" {
					t.Errorf("%d frames read while %s", count(s, "tx_read")-before, s.Recovery.State)
				}
				a.faults.Release()
				time.Sleep(20 * time.Millisecond)
				for i := range frames {
					if f := b.takeIP(); f == nil || f[34] != byte(i) {
						t.Errorf("frame %d did not arrive in its turn", i)
					}
				}
				if got := a.tap.forget(); !slices.Equal(got, c.carriers) {
					t.Errorf("carrier went %v, want %v", got, c.carriers)
				}
				checkAccounts(t, a.status())
			})
		})
	}
}
