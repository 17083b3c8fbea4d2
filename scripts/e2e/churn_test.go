package e2e

import (
	"os/exec"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// How often each operation is repeated.
const (
	flaps    = 100
	restarts = 100
)

// slack is how many more descriptors or goroutines a daemon may have after the
// churn than before, because the status request itself needs some.
const slack = 2

// ib0 goes down and up under traffic; the daemon leaks nothing and loses no
// buffers.
func TestDownUpUnderTraffic(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	before := a.daemon.status()

	stop := b.traffic(a.ip4())
	start := time.Now()
	for range flaps {
		a.Run("ip", "link", "set", ifName, "down")
		a.Run("ip", "link", "set", ifName, "up")
		a.waitCarrier()
	}
	t.Logf("ib0 went down and up %d times in %v", flaps, time.Since(start).Round(time.Millisecond))
	stop()

	a.AddIPv6(ifName, a.ip6()+"/64") // down removes it
	b.waitReaches(a)
	pingAll(a, b)
	requireNoLeak(t, before, a.daemon)
}

// One daemon stops and starts under traffic; the other daemon leaks nothing and
// loses no buffers.
func TestStopStartUnderTraffic(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	a, b := twoJoined(t)
	before := b.daemon.status()

	stop := b.traffic(a.ip4())
	start := time.Now()
	for range restarts {
		a.daemon.stop()
		a.start()
		a.waitCarrier()
	}
	t.Logf("%d times stopped and started in %v", restarts, time.Since(start).Round(time.Millisecond))
	stop()

	b.waitReaches(a)
	pingAll(a, b)
	requireNoLeak(t, before, b.daemon)
	requireNoStale(t, []*host{a, b})
}

// traffic floods dst with echo requests until stop is called.
func (h *host) traffic(dst string) (stop func()) {
	h.tb.Helper()
	cmd := h.Command("ping", "-n", "-q", "-f", "-s", "1000", dst)
	if err := cmd.Start(); err != nil {
		h.tb.Fatalf("start traffic: %v", err)
	}
	return func() { end(h.tb, cmd) }
}

func end(tb testing.TB, cmd *exec.Cmd) {
	tb.Helper()
	if err := cmd.Process.Kill(); err != nil {
		tb.Errorf("the traffic ended by itself: %v", err)
	}
	_ = cmd.Wait() // killed
}

// requireNoLeak compares the resources of a daemon at rest with those before. It waits, because what has served an
// earlier client may still be about to end.
func requireNoLeak(t *testing.T, before status, d *daemon) {
	t.Helper()
	after := d.status()
	for end := time.Now().Add(repairLimit); time.Now().Before(end); after = d.status() {
		if after.Goroutines <= before.Goroutines+slack && after.FDs <= before.FDs+slack {
			break
		}
	}
	t.Logf("goroutines %d -> %d, descriptors %d -> %d", before.Goroutines, after.Goroutines, before.FDs, after.FDs)
	if after.Goroutines > before.Goroutines+slack {
		t.Errorf("goroutines leaked: %d, were %d", after.Goroutines, before.Goroutines)
	}
	if after.FDs > before.FDs+slack {
		t.Errorf("descriptors leaked: %d, were %d", after.FDs, before.FDs)
	}
	requireBuffers(t, d)
}

// receives is the default number of receive buffers of an interface on a software HCA.
const receives = 128

// requireBuffers checks that a daemon at rest has all its buffers: all receives
// posted, all sends free, and each post completed or taken back. It retries,
// because one of the host's own frames may be in transit.
func requireBuffers(t *testing.T, d *daemon) {
	t.Helper()
	var k book
	eventually(t, repairLimit, "every buffer is in its place", func() bool {
		k = book{t, map[string]uint64{}}
		k.add("", d.status().Interfaces[0].Counters)
		return k.of("tx_outstanding") == 0 && k.of("rx_outstanding") == receives &&
			k.of("tx_posts") == k.of("tx_completions", "tx_taken_back") &&
			k.of("rx_posts") == k.of("rx_completions", "rx_taken_back", "rx_outstanding")
	})
	t.Logf("buffers: %d sends posted, all back; %d receives posted, %d of them now", k.of("tx_posts"), k.of("rx_posts"), k.of("rx_outstanding"))
}
