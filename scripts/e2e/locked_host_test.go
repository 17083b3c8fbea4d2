package e2e

import (
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

// Another process holds the kernel's lock of all interfaces (rtnl) for some seconds, while a queue pair is
// rebuilt, which does not need the lock, or the device is reset, which waits for it. That is no fault of the
// device (R07), and the daemon answers meanwhile.
func TestR07LockedHostIsNoFault(t *testing.T) {
	if nstest.EnterAlone(t) {
		return
	}
	for _, c := range []struct {
		scope  string
		locked time.Duration // a verb may take 1 s, the rung 3 s, an opening 10 s
		passes bool          // frames, meanwhile
		rung   string
	}{
		{"cq", 4 * time.Second, true, rebuildCQ},
		{"device", form(4*time.Second, 30*time.Second), false, resetDevice},
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
			if c.passes {
				eventually(t, repairLimit, "frames pass while the lock is held", func() bool { return a.reaches(b) })
			} else if a.reaches(b) {
				t.Error("frames pass, so the reset did not wait for the lock, and the test proves nothing")
			}
			release()
			t.Logf("status answered after %v; reached again %v after the lock was released", took, b.waitReaches(a))
			if took > answerLimit {
				t.Errorf("status answered after %v", took)
			}
			requireOnlyRungs(t, []string{c.rung}, a, b)
		})
	}
}
