package iface

import (
	"testing"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/qprecovery/freeze"
)

// An interface with a carrier and without traffic sends hardly any probes. The peer table
// ends the rest about once a minute, when it verifies a peer.
func TestIdleInterfaceRests(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(time.Minute)
		before := count(a.status(), "freeze_probes")
		time.Sleep(time.Minute)
		probes := count(a.status(), "freeze_probes") - before
		t.Logf("%d probes in a minute", probes)
		if most := uint64(time.Minute / freeze.Rest); probes < most-1 || probes > most+2*freeze.RestAfter {
			t.Errorf("%d probes in a minute, want about %d", probes, most)
		}
		reach(t, a, b)
	})
}

// A fault of a data path that has rested for a minute is noticed as early as ever once there is a
// frame to send. Without one, it is noticed with the next probe.
func TestR08FreezeAfterRestIsNoticed(t *testing.T) {
	for _, kind := range []faults.Kind{faults.CompletionsStop, faults.DeafReceive} {
		for _, sends := range []bool{true, false} {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				reach(t, a, b)
				time.Sleep(time.Minute)
				a.inject(faults.Fault{Kind: kind})
				limit := time.Second
				if sends {
					mac, _ := a.neighbour(b.ip)
					a.sendIP(mac, b.ip, 100, 1)
				} else {
					limit += freeze.Rest
				}
				took := until(func() bool { return a.status().Recovery.Rungs["rebuild_cq"] != 0 }, 10*time.Millisecond, time.Minute)
				t.Logf("%s, sends %t: noticed after %v", kind, sends, took)
				if took > limit {
					t.Errorf("%s, sends %t: noticed after %v, want %v at most", kind, sends, took, limit)
				}
				time.Sleep(time.Second)
				drainInbox(a, b)
				reach(t, a, b)
				checkAccounts(t, a.status())
			})
		}
	}
}

// What the table does of itself while the lanes rest, such as its second queries for groups, shows soon.
func TestStatusAtRestIsFresh(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		time.Sleep(29 * time.Second)
		shown := func() (written, queries uint64) {
			s := a.iface.Status() // testHost's own makes a snapshot
			return s.Kernel["tap_written"].Value, count(s, "neigh_queries")
		}
		was, asked := shown()
		poll := 10 * time.Millisecond
		until(func() bool { written, _ := shown(); return written == was+2 }, poll, time.Minute)
		took := until(func() bool { _, queries := shown(); return queries == asked+2 }, poll, time.Minute)
		t.Logf("the queries show %v after they were written", took)
		if took > 2*publishEvery {
			t.Errorf("the queries show %v after they were written, want %v at most", took, 2*publishEvery)
		}
	})
}
