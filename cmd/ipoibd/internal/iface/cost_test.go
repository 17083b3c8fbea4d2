package iface

import (
	"runtime/metrics"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery"
)

// maxRungGoroutines bounds the goroutines that a rebuild of the CQ starts on a backend that never blocks: the two pumps, and
// one for attach_mcast, which may wait for the kernel's rtnl lock.
const maxRungGoroutines = 3

// A rung calls the verbs of a backend that never blocks on the worker of the interface, not on goroutines of their own.
func TestRungStartsFewGoroutines(t *testing.T) {
	promptHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		synctest.Wait()
		before := goroutinesCreated()
		if err := a.iface.Reset(t.Context(), qprecovery.RungRebuildCQ); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		n := goroutinesCreated() - before
		t.Logf("%d goroutines", n)
		if s := a.status(); len(s.Recovery.History) != 1 || s.Recovery.History[0].Rung != "rebuild_cq" {
			t.Errorf("recovery %+v", s.Recovery)
		}
		if n > maxRungGoroutines {
			t.Errorf("a rebuild of the CQ has started %d goroutines, want at most %d", n, maxRungGoroutines)
		}
		time.Sleep(time.Second)
		reach(t, a, b)
	})
}

// goroutinesCreated returns how many goroutines this process has started.
func goroutinesCreated() uint64 {
	s := []metrics.Sample{{Name: "/sched/goroutines-created:goroutines"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}
