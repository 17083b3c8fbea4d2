package vm

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"ipoibd/scripts/vm/guest"
	"ipoibd/scripts/vm/kernel"
)

// A daemon resets the PCI function under its device, by each means that there is:
// it says before who else uses the device, whom the driver waits for, and makes it
// anew; once somebody has set the new netdev up, the traffic is back.
func TestR16R25FunctionReset(t *testing.T) {
	if guest.Enter(t) {
		return
	}
	guest.EachKernel(t, func(t *testing.T, series kernel.Series) {
		t.Parallel() // each waits most of the time
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
	waitSays(t, user, "holds it")
	start := time.Now()
	e.ipoibd("reset", "device")
	eventually(t, "the other user is named", func() bool { return e.says(`used_by_others="sleep (pid `) })
	user.Signal(syscall.SIGKILL)
	eventually(t, "the device is another instance", func() bool {
		return e.Try("sh", "-c", fmt.Sprintf("rdma dev show %s | grep -v ^%s:", rxe0, index))
	})
	made := time.Since(start)
	setUpUnder(e)
	e.waitReaches(soft)
	t.Logf("device made anew after %v, traffic after %v", made.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
	if now := e.Run("cat", ifIndex); now != before {
		t.Errorf("%s is another interface: index %s, was %s", ifName, now, before)
	}
}
