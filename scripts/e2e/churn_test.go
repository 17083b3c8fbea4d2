package e2e

import (
	"os/exec"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// How often each thing is done over and over.
const (
	flaps    = 100
	restarts = 100
)

// slack is how many descriptors or goroutines a daemon may have more after the
// churn than before it: those of the status request itself come and go.
const slack = 2

// ib0 goes down and up under traffic; the daemon loses nothing by it.
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
	t.Logf("%d times down and up in %v", flaps, time.Since(start).Round(time.Millisecond))
	stop()

	a.Run("ip", "addr", "replace", a.ip6()+"/64", "dev", ifName, "nodad") // down removes it
	b.waitReaches(a)
	pingAll(a, b)
	requireNoLeak(t, before, a.daemon)
}

// The daemon stops and starts under traffic; the other one loses nothing by it.
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

// requireNoLeak compares a daemon at rest with itself before.
func requireNoLeak(t *testing.T, before status, d *daemon) {
	t.Helper()
	after := d.status()
	t.Logf("goroutines %d -> %d, descriptors %d -> %d", before.Goroutines, after.Goroutines, before.FDs, after.FDs)
	if after.Goroutines > before.Goroutines+slack {
		t.Errorf("goroutines leak: %d, were %d", after.Goroutines, before.Goroutines)
	}
	if after.FDs > before.FDs+slack {
		t.Errorf("descriptors leak: %d, were %d", after.FDs, before.FDs)
	}
	requireBuffers(t, before, after)
}

// requireBuffers checks that every buffer is where it was: the receives posted,
// the sends free, and each post ever made completed or taken back.
func requireBuffers(t *testing.T, before, after status) {
	t.Helper()
	count := func(s status, name string) uint64 {
		v, ok := value(s.Interfaces[0].Counters, name)
		if !ok {
			t.Fatalf("no counter %s", name)
		}
		return v
	}
	for _, way := range []string{"tx_", "rx_"} {
		out := count(after, way+"outstanding")
		t.Logf("%s: %d buffers with the device, were %d; %d posts", way, out, count(before, way+"outstanding"), count(after, way+"posts"))
		if was := count(before, way+"outstanding"); out != was {
			t.Errorf("%soutstanding is %d, was %d", way, out, was)
		}
		if posts, ends := count(after, way+"posts"), count(after, way+"completions")+count(after, way+"taken_back")+out; posts != ends {
			t.Errorf("%s: %d posts, but %d ends", way, posts, ends)
		}
	}
}
