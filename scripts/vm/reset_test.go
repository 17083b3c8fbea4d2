package vm

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon resets the PCI function under its device by each available means. It
// first logs the other users of the device, because the driver waits for them, then
// creates the device again. Once the new netdev is configured, traffic resumes.
func TestR16R25FunctionReset(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		real, soft := newRealPair(t, series, "--reset", "driver")
		requireFunctionReset(t, real, soft)
		real.stop()
		real.startDaemon("--device", rxe0, "--reset", "pci")
		real.waitReaches(soft)
		requireFunctionReset(t, real, soft)
	})
}

func requireFunctionReset(t *testing.T, e, soft *endpoint) {
	t.Helper()
	index, before := kernelIndex(e), e.Run("cat", ifIndex)
	user := e.start("sh", "-c", "exec 3<>$(echo /dev/infiniband/uverbs*); echo holds it; exec sleep 1000")
	waitPrints(t, user, "holds it")
	start := time.Now()
	e.ipoibd("reset", "device")
	// The daemon's sandbox hides the descriptors of other processes.
	eventually(t, "the reset has begun", func() bool { return e.says(`used_by_others="no other process that can be seen from here"`) })
	user.Signal(syscall.SIGKILL)
	eventually(t, "the device is another instance", func() bool {
		return e.Try("sh", "-c", fmt.Sprintf("rdma dev show %s | grep -v ^%s:", rxe0, index))
	})
	made := time.Since(start)
	eventually(t, "traffic over the new netdev", func() bool { return e.setsUpAndReaches(soft) })
	t.Logf("device created again after %v, traffic after %v", made.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if now := e.Run("cat", ifIndex); now != before {
		t.Errorf("%s was created again: index %s, was %s", ifName, now, before)
	}
}

// setsUpAndReaches configures the new netdev, which is down and has no address, as a
// network manager would, and reports whether an echo request is answered then.
func (e *endpoint) setsUpAndReaches(other *endpoint) bool {
	return e.Try("sh", "-c", fmt.Sprintf("ip link set eth0 mtu %d up && ip addr replace %s/24 dev eth0 && ping -n -c 1 -W 1 %s",
		underMTU, nstest.IPv4(e.number), other.ip4()))
}
