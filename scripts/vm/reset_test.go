package vm

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon resets the PCI function under its device by each available means, although another
// program has the device open, since that is forced. It first logs the other users of the device,
// because the driver waits for them, then creates the device again. Traffic resumes, because
// the daemon restores the addresses, the MTU and the routes of the new netdev.
func TestR16R25FunctionReset(t *testing.T) {
	if guest.EnterBeside(t) {
		return
	}
	guest.NewestKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series, "--reset", "driver", "--force")
		requireFunctionReset(t, real, soft)
		real.stop()
		real.startDaemon("--device", rxe0, "--reset", "pci", "--force")
		real.waitReaches(soft)
		requireFunctionReset(t, real, soft)
	})
}

func requireFunctionReset(t *testing.T, e, soft *endpoint) {
	t.Helper()
	index, before := kernelIndex(e), e.Run("cat", ifIndex)
	user := holdDevice(t, e)
	start := time.Now()
	e.ipoibd("reset", "device")
	eventually(t, "the reset has begun", func() bool { return e.says(`used_by_others="ibv_asyncwatch (pid `) })
	user.Signal(syscall.SIGKILL)
	eventually(t, "the device is another instance", func() bool {
		return e.Try("sh", "-c", fmt.Sprintf("rdma dev show %s | grep -v ^%s:", rxe0, index))
	})
	made := time.Since(start)
	e.waitReaches(soft)
	t.Logf("device created again after %v, traffic after %v", made.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if now := e.Run("cat", ifIndex); now != before {
		t.Errorf("%s was created again: index %s, was %s", ifName, now, before)
	}
}

// holdDevice starts a program that keeps a context of the device open.
func holdDevice(tb testing.TB, m machine) process {
	tb.Helper()
	p := m.start("ibv_asyncwatch", "-d", rxe0)
	eventually(tb, "the program has the device open", func() bool {
		return strings.Contains(m.Run("ipoibd", "devices"), "ibv_asyncwatch (pid ")
	})
	return p
}

// configureUnderlay configures a new netdev, which is down and has no address, as a network
// manager would.
func (s *sharer) configureUnderlay() {
	s.Run("ip", "link", "set", "eth0", "mtu", fmt.Sprint(underMTU), "up")
	s.Run("ip", "addr", "replace", nstest.IPv4(0)+"/24", "dev", "eth0")
}
