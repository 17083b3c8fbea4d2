package vm

import (
	"syscall"
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A killed daemon leaves nothing open: its rxe device can be deleted. The next
// daemon, on the same device or on one added again, adopts ib0, and traffic resumes.
func TestKilledOnRxe(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
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

// kill kills the daemon, so it cannot close anything.
func (e *endpoint) kill() {
	e.tb.Helper()
	e.daemon.Signal(syscall.SIGKILL)
	awaitExit(e.tb, e.daemon)
}

// requireReplug deletes rxe0, which no process uses any more, and adds it again.
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
