package vm

import (
	"syscall"
	"testing"
	"time"

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
		a, b := newRealPair(t, series)
		for _, replug := range []bool{false, true} {
			a.kill()
			if a.carrier() {
				t.Error("ib0 of a killed daemon has carrier")
			}
			if replug {
				requireReplug(t, a)
			}
			start := time.Now()
			a.startDaemon("--device", rxe0)
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
func requireReplug(t *testing.T, m machine) {
	t.Helper()
	start := time.Now()
	m.Run("rdma", "link", "del", rxe0)
	took := time.Since(start)
	t.Logf("rdma link del took %v", took.Round(time.Millisecond))
	if took > endLimit {
		t.Errorf("rdma link del took %v", took)
	}
	addRxe(m, rxe0, "eth0")
}
