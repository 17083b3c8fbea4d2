package e2e

import (
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Another process holds the kernel's lock of all interfaces (rtnl) for some seconds, while a queue pair is
// rebuilt or the device reset. A queue pair waits for the lock to leave its groups and to join them again,
// and an opening of the software HCA to look at its netdev. That is no fault of the device (R07), and the
// daemon answers meanwhile.
func TestR07LockedHostIsNoFault(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	for _, c := range []struct {
		scope  string
		locked time.Duration
		rung   string
	}{
		{"cq", 4 * time.Second, rebuildCQ}, // the rung may take 3 s, a verb 1 s
		{"device", form(4*time.Second, 30*time.Second), resetDevice},
	} {
		t.Run(c.scope, func(t *testing.T) {
			a, b := twoJoined(t)
			release := a.HoldRTNL(nstest.Dev)
			if out, err := a.daemon.command("reset", c.scope).CombinedOutput(); err != nil {
				t.Errorf("reset %s: %v\n%s", c.scope, err, out)
			}
			time.Sleep(c.locked)
			asked := time.Now()
			a.daemon.status()
			took := time.Since(asked)
			if a.reaches(b) {
				t.Error("the interface does not wait for the lock, so the test proves nothing")
			}
			release()
			t.Logf("status answered after %v; reached again %v after the lock was released", took, b.waitReaches(a))
			if took > answerLimit {
				t.Errorf("status answered after %v", took)
			}
			requireOnlyRungs(t, []string{c.rung}, a, b)
			if n := a.rungs()[c.rung]; n != 1 {
				t.Errorf("%s was entered %d times, want once", c.rung, n)
			}
		})
	}
}
