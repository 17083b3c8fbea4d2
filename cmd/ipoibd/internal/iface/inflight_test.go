package iface

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// A frame in flight when a rung begins, on a link that accepts nothing, is counted as lost once, by
// its completion or by the reset, and is not sent later. Every frame and every buffer is accounted
// for.
func TestR10InFlight(t *testing.T) {
	const frames = 20
	for _, c := range []struct {
		name  string
		begin func(a *testHost) error
		rung  string
	}{
		{"QP reset", ordered(qprecovery.RungResetQP), "reset_qp"},
		{"CQ rebuild", ordered(qprecovery.RungRebuildCQ), "rebuild_cq"},
		{"device reset", fatal, "reset_device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				reach(t, a, b)
				mac, _ := a.neighbour(b.ip)
				a.underlay().SetWritable(false)
				for i := range byte(frames) {
					a.sendIP(mac, b.ip, 100, i)
				}
				synctest.Wait()
				before := a.status()
				if n := count(before, "tx_outstanding"); n != frames {
					t.Fatalf("%d of %d frames in flight", n, frames)
				}
				if err := c.begin(a); err != nil {
					t.Fatal(err)
				}
				time.Sleep(100 * time.Millisecond)
				a.underlay().SetWritable(true)
				time.Sleep(100 * time.Millisecond)
				if f := b.takeIP(); f != nil {
					t.Errorf("a frame was sent after it was counted as lost")
				}
				a.resolve(b.ip) // announcements of a new queue pair may have been lost
				reach(t, a, b)
				s := a.status()
				if s.Recovery.Rungs[c.rung] != 1 {
					t.Errorf("rungs %v", s.Recovery.Rungs)
				}
				if lost := count(s, "tx_drop_reset", "tx_wc_") - count(before, "tx_drop_reset", "tx_wc_"); lost != frames {
					t.Errorf("%d counted as lost, %d were in flight", lost, frames)
				}
				checkAccounts(t, s)
			})
		})
	}
}

func ordered(rung qprecovery.Rung) func(*testHost) error {
	return func(h *testHost) error { return h.iface.Reset(h.t.Context(), rung) }
}

func fatal(h *testHost) error {
	h.inject(faults.Fault{Kind: faults.DeviceFatal})
	return nil
}

// count adds up the counters that begin with one of the prefixes.
func count(s report.Interface, prefixes ...string) (n uint64) {
	for name, value := range s.Counters {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			n += value.Value
		}
	}
	return n
}
