package device

import (
	"testing"
	"time"

	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// checkInterval is the time between two checks of a device (checkEvery of qprecovery).
const checkInterval = 2 * time.Second

// A query of the port that takes 50 s, because the host holds a lock that the driver
// needs, is no fault of the device (R07).
func TestR07SlowQueryIsNoFault(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		for range 10 {
			b.slot.inject(t, faults.Fault{Kind: faults.VerbHangs, Verb: "query_port"})
			time.Sleep(checkInterval + 50*time.Second)
			b.slot.mu.Lock()
			b.slot.faults.Release()
			b.slot.mu.Unlock()
			time.Sleep(checkInterval)
		}
		if opens := b.Opens(); opens != 1 || len(b.Status().History) != 0 {
			t.Errorf("%d opens, %+v", opens, b.Status().History)
		}
	})
}

// A device that does not answer is detected even when no interface is up, within the two
// seconds between checks plus the time limit of the query. It is reset once.
func TestR08DeviceIsCheckedWithoutUsers(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		time.Sleep(time.Minute)
		if opens := b.Opens(); opens != 1 || len(b.Status().History) != 0 {
			t.Fatalf("%d opens of a healthy device, %+v", opens, b.Status().History)
		}
		b.slot.inject(t, faults.Fault{Kind: faults.VerbHangs, Count: 2})
		start := time.Now()
		for b.Opens() == 1 && time.Since(start) < time.Minute {
			time.Sleep(10 * time.Millisecond)
		}
		if took := time.Since(start); took > checkInterval+guard.DefaultHostTimeout+verbTimeout+100*time.Millisecond {
			t.Errorf("reset after %v, want 8 s at most", took)
		}
		b.healthy(soon)
		b.wantSteps(rung(qprecovery.RungDevice, qprecovery.ReasonVerbStuck))
		time.Sleep(time.Minute)
		if b.Opens() != 2 {
			t.Errorf("opened %d times", b.Opens())
		}
	})
}

// A suspended device is closed, so it is not checked.
func TestR08SuspendedDeviceIsNotChecked(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		if err := b.Suspend(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		if s := b.Status(); s.State != qprecovery.DeviceSuspended || b.Opens() != 1 {
			t.Errorf("state %v after %d opens, want suspended after one", s.State, b.Opens())
		}
		if err := b.Resume(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		b.healthy(time.Second)
	})
}
