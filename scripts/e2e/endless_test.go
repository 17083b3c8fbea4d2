package e2e

import (
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	// endless is how long every send fails.
	endless = 15 * time.Second
	// curedLimit is ten times the longest pause that the ladder reaches within
	// endless (8 s), after which a rebuild finds the fault gone.
	curedLimit = 80 * time.Second
)

// Work requests that keep failing lead no further than the CQ rung, which is
// repeated with growing pauses; the device is never reset for them.
func TestR06EndlessRequestErrors(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	hosts := newHosts(t, 2)
	a, b := hosts[0], hosts[1]
	a.join("--allow-faults")
	b.join()
	pingAll(a, b)
	said := a.daemon.followEvents()
	a.daemon.inject(faultRequest{Kind: "send_error_err", Count: 1_000_000})
	ping := a.Command("ping", "-n", "-q", "-i", "0.01", "-w", "15", b.ip4())
	_ = ping.Run() // gets no answers
	rungs := map[string]int{}
	for _, e := range said.since(0) {
		if e.Kind == entered && e.Scope == ifName {
			rungs[e.Rung]++
		}
	}
	t.Logf("within %v: %v", endless, rungs)
	if rungs[resetQP] == 0 || rungs[recreateQP] == 0 || rungs[rebuildCQ] == 0 {
		t.Errorf("rungs %v: want reset_qp, recreate_qp and rebuild_cq", rungs)
	}
	if rungs[rebuildCQ] > 10 {
		t.Errorf("%d CQ rebuilds, want at most 10: the pauses did not grow", rungs[rebuildCQ])
	}
	if rungs[resetDevice]+rungs[waitDevice]+rungs[giveUp] > 0 {
		t.Errorf("rungs %v: failed work requests must not reset the device", rungs)
	}
	if !a.exists() || len(a.addrs()) == 0 {
		t.Error("ib0 has lost its addresses")
	}
	a.daemon.inject(faultRequest{Kind: "clear"})
	start := time.Now()
	eventually(t, curedLimit, "the fault is gone, and host 1 is reached", func() bool { return a.reaches(b) })
	t.Logf("reached %v after the fault was gone", time.Since(start).Round(time.Millisecond))
	a.requireAccounts()
}
