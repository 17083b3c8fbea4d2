package link_test

import (
	"testing"
	"time"

	"ipoibd/link"
	"ipoibd/link/linktest/nstest"
)

// While another process holds the kernel's lock of all interfaces, the kernel's counters are missing, rather than
// old ones shown as present.
func TestKernelCountersAreNeverOld(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	tap, _ := openUp(t)
	before, err := tap.KernelCounters()
	must(t, err)
	ns := nstest.New(t)
	release := ns.HoldRTNL("lo")
	wrote, err := tap.WriteVectors([][][]byte{{make([]byte, link.HeaderLen), make([]byte, 60)}}, make([]bool, 1))
	if wrote != 1 || err != nil {
		t.Fatalf("wrote %d frames, %v", wrote, err)
	}
	for range 3 {
		start := time.Now()
		if k, err := tap.KernelCounters(); err == nil {
			t.Errorf("counters while the lock is held: %+v, before: %+v", k, before)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("an answer took %v", took)
		}
	}
	release()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		k, err := tap.KernelCounters()
		if err == nil && k.RxPackets > before.RxPackets {
			break
		}
		if time.Since(start) > 20*time.Second {
			t.Fatalf("counters after the release: %+v, before: %+v, %v", k, before, err)
		}
	}
}
