package vm

import (
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon that is killed holds nothing: its rxe device can be deleted, and its
// next start, whether on the same device or on one added again, brings the traffic
// back, through the ib0 that was left.
func TestKilledOnRxe(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		segment := nstest.NewSegment(t, 4200)
		g := inGuest{guest.Boot(t, guest.Spec{Series: series, NICs: []guest.NIC{{Segment: segment, Host: 0}}})}
		addRxe(g.Guest, rxe0, "eth0")
		args := []string{"--device", rxe0}
		a := newEndpoint(t, g, 0, args...)
		b := newEndpoint(t, newHost(t, segment), 1, "--underlay", "eth0", "--standard-mtu")
		a.join()
		b.join()
		a.waitReaches(b)
		for _, replug := range []bool{false, true} {
			a.kill()
			if a.carrier() {
				t.Error("ib0 of a killed daemon has carrier")
			}
			if replug {
				requireReplug(t, g)
			}
			start := time.Now()
			a.startDaemon(args...)
			a.waitReaches(b)
			t.Logf("replugged %v: reached after %v", replug, time.Since(start).Round(time.Millisecond))
			requireEcho(t, a, b, a.mtu()) // IPv6, too
			requireComplete(t, a, b)
		}
	})
}

// kill ends the daemon without a chance to close anything.
func (e *endpoint) kill() {
	e.tb.Helper()
	e.daemon.Signal(syscall.SIGKILL)
	awaitExit(e.tb, e.daemon)
}

// requireReplug deletes rxe0, which nobody holds any more, and adds it again.
func requireReplug(t *testing.T, g inGuest) {
	t.Helper()
	start := time.Now()
	g.Run("rdma", "link", "del", rxe0)
	took := time.Since(start)
	t.Logf("rdma link del took %v", took.Round(time.Millisecond))
	if took > endLimit {
		t.Errorf("rdma link del took %v", took)
	}
	addRxe(g.Guest, rxe0, "eth0")
}
