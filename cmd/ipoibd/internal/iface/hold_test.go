package iface

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// From the first suspicion until health, the host's frames stay in the TAP's queue and are
// sent afterwards. The carrier goes down only if that lasts longer than its bound, and comes
// back. Frames that have become stale are dropped.
func TestR09FramesAreHeld(t *testing.T) {
	const frames = 5
	for _, c := range []struct {
		name     string
		lasts    time.Duration
		carriers []bool
	}{
		{"short", qprecovery.CarrierBound / 2, nil},
		{"long", qprecovery.CarrierBound * 5 / 4, []bool{false, true}},
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

// The host's frames of a long outage are dropped and counted; those sent at its end arrive.
func TestR09R27StaleFramesAreDropped(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		const early, late = 7, 3
		reach(t, a, b)
		time.Sleep(time.Second)
		mac, _ := a.neighbour(b.ip)
		a.unplug() // without an event before, under traffic
		synctest.Wait()
		for i := range byte(early) {
			a.sendIP(mac, b.ip, 100, i)
		}
		time.Sleep(qprecovery.CarrierBound + staleAfter/2)
		if n := count(a.status(), "tx_drop_held"); n != 0 {
			t.Errorf("%d frames dropped too early", n)
		}
		time.Sleep(staleAfter)
		synctest.Wait()
		if n := count(a.status(), "tx_drop_held"); n != early {
			t.Errorf("%d frames dropped, want %d", n, early)
		}
		a.plug()
		time.Sleep(time.Second)
		synctest.Wait()
		drainInbox(b)
		for i := range byte(late) {
			a.sendIP(mac, b.ip, 100, i)
		}
		time.Sleep(time.Second)
		for i := range late {
			if f := b.takeIP(); f == nil || f[34] != byte(i) {
				t.Errorf("frame %d did not arrive in its turn", i)
			}
		}
		if f := b.takeIP(); f != nil {
			t.Errorf("a stale frame arrived: %x", f)
		}
		reach(t, a, b)
		checkAccounts(t, a.status())
	})
}
