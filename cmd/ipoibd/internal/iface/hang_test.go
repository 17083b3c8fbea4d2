package iface

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// A verb that hangs does not stall Run, no matter what caused it: Run answers at once, and
// the freeze detector gets its samples.
func TestR08HangingVerbDoesNotStallRun(t *testing.T) {
	goUp := func(h *testHost) { h.tap.SetUp(true) }
	goDown := func(h *testHost) { h.tap.SetUp(false) }
	for _, c := range []struct {
		name, verb string
		before     func(*testHost) // nil: nothing
		call       func(*testHost)
	}{
		{"ib0 goes up", "create_qp", goDown, goUp},
		{"ib0 goes down", "destroy_qp", nil, goDown},
		{"a rung runs", "modify_qp", nil, func(h *testHost) { h.order(qprecovery.RungResetQP) }},
		{"the port changes", "destroy_qp", nil, func(h *testHost) { h.light(false) }},
		{"the device is suspended", "dealloc_pd", nil, (*testHost).suspend},
	} {
		t.Run(c.name, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				if c.before != nil {
					c.before(a)
					synctest.Wait()
				}
				a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: c.verb})
				c.call(a)
				synctest.Wait()
				checkRunAnswers(t, a, 300*time.Millisecond)
				a.release()
			})
		})
	}
}

// checkRunAnswers fails if Run does not answer at once, or if a sample of the freeze detector
// is overdue, within a period.
func checkRunAnswers(t *testing.T, h *testHost, period time.Duration) {
	t.Helper()
	var longest, overdue time.Duration
	for start := time.Now(); time.Since(start) < period; {
		asked := time.Now()
		h.onRun(func(f *Iface) {
			if f.fabric.att != nil {
				overdue = max(overdue, time.Since(f.lanes.all[0].deadline(time.Now(), f.lanes.resting())))
			}
		})
		longest = max(longest, time.Since(asked))
		time.Sleep(10 * time.Millisecond)
	}
	if longest > 0 || overdue > 0 {
		t.Errorf("Run answered within %v, a sample was overdue by %v", longest, overdue)
	}
}

// The destruction of an address handle that hangs does not stall Run either. The device is
// reset because of it.
func TestR08HangingHandleDoesNotStallRun(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.verbs.slow("destroy_ah", 10*time.Second)
		opens := a.dev.Opens()
		b.tap.SetUp(false)
		if until(func() bool { return a.verbs.count("destroy_ah") > 0 }, 10*time.Millisecond, 4*time.Hour) >= 4*time.Hour {
			t.Fatal("no handle was destroyed, so the test shows nothing")
		}
		checkRunAnswers(t, a, 300*time.Millisecond)
		a.verbs.slow("destroy_ah", 0)
		time.Sleep(time.Minute)
		if n := a.dev.Opens(); n != opens+1 {
			t.Errorf("opened %d times, was %d", n, opens)
		}
	})
}

// Handles that are destroyed slowly, as those of thousands of peers are, delay no rung, and no rung fails
// because of them (R06).
func TestR06SlowHandlesDelayNoRung(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.verbs.slow("destroy_ah", 900*time.Millisecond) // not stuck yet
		b.tap.SetUp(false)
		if until(func() bool { return a.verbs.count("destroy_ah") > 0 }, 10*time.Millisecond, 4*time.Hour) >= 4*time.Hour {
			t.Fatal("no handle was destroyed, so the test shows nothing")
		}
		start := time.Now()
		a.order(qprecovery.RungResetQP)
		synctest.Wait()
		if s := a.status().Recovery; time.Since(start) != 0 || s.State != qprecovery.Healthy.String() || s.Rungs["reset_qp"] != 1 {
			t.Errorf("%s, %v after %v", s.State, s.Rungs, time.Since(start))
		}
	})
}

// An address handle that is not made in time, while ib0 goes up, does not lead to a reset of
// the device, because a peer may be the cause (R7). ib0 is tried again.
func TestR08HandleThatIsNotMadeIsNoFreeze(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.tap.SetUp(false)
		synctest.Wait()
		opens := a.dev.Opens()
		a.inject(faults.Fault{Kind: faults.VerbHangs, Verb: "create_ah"})
		a.tap.SetUp(true)
		time.Sleep(4 * time.Second)
		if s := a.status().Recovery.State; s != qprecovery.Idle.String() {
			t.Fatalf("the interface is %v, want it to wait for create_ah", s)
		}
		time.Sleep(30 * time.Second)
		if n := a.dev.Opens(); n != opens {
			t.Errorf("opened %d times, was %d", n, opens)
		}
		reach(t, a, b)
		a.release()
	})
}

// An inspection of ib0 that blocks, because another process holds the kernel's lock of all
// interfaces, stalls neither Run nor recovery.
func TestBlockedInspectionDoesNotStallRun(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		release := a.tap.hold()
		time.Sleep(2 * inspectEvery)
		checkRunAnswers(t, a, 300*time.Millisecond)
		a.inject(faults.Fault{Kind: faults.CQError})
		reach(t, a, b)
		time.Sleep(100 * time.Millisecond)
		if r := a.status().Recovery; r.Rungs["rebuild_cq"] != 1 || r.State != "healthy" {
			t.Errorf("rungs %v, %s", r.Rungs, r.State)
		}
		release()
		reach(t, a, b)
	})
}

// A post or a poll that hangs is a stuck verb, however it is found out: the device is reset, Run
// answers within the limit of such a call, and every frame has an end. The call is counted as long as
// it hangs, and the instance that it hangs in is released once it returns (R08, R19).
func TestR19PostOrPollThatHangs(t *testing.T) {
	const most = time.Second // as long as a call may take
	for _, verb := range []string{"post_send", "post_recv", "poll_cq"} {
		for _, c := range []struct {
			name  string
			reset bool // a rung finds it; else the freeze detector
		}{{"found by the freeze detector", false}, {"found by a rung", true}} {
			t.Run(verb+"/"+c.name, func(t *testing.T) {
				twoHosts(t, func(t *testing.T, a, b *testHost) {
					reach(t, a, b)
					old := a.dev.View().Session
					a.inject(faults.Fault{Kind: faults.VerbHangsForever, Verb: verb})
					mac, _ := a.neighbour(b.ip)
					for mark := range 20 {
						a.sendIP(mac, b.ip, 100, byte(mark))
						reply, _ := b.neighbour(a.ip)
						b.sendIP(reply, a.ip, 100, byte(mark))
					}
					if c.reset {
						a.order(qprecovery.RungResetQP)
					}
					var longest time.Duration
					for start := time.Now(); time.Since(start) < 20*time.Second; time.Sleep(10 * time.Millisecond) {
						asked := time.Now()
						a.onRun(func(*Iface) {})
						longest = max(longest, time.Since(asked))
					}
					r := a.status().Recovery
					if longest > most || a.dev.Opens() != 2 {
						t.Errorf("Run answered within %v; the device was opened %d times; reasons %v", longest, a.dev.Opens(), r.Reasons)
					}
					if d := a.dev.Status(); d.Counts.Reasons[qprecovery.ReasonVerbStuck] != 1 {
						t.Errorf("the device was reset by %v", d.Counts.Reasons)
					}
					if n := guardCount(old, "guard_verbs_stuck"); n != 1 {
						t.Errorf("%d calls are stuck, want 1", n)
					}
					drainInbox(a, b)
					reach(t, a, b)
					checkAccounts(t, a.status())
					close(a.forever)
					synctest.Wait()
					if n := guardCount(old, "guard_verbs_stuck") + guardCount(old, "guard_zombies"); n != 0 {
						t.Errorf("%d calls are stuck and zombies are left, want none", n)
					}
					reach(t, a, b)
					checkAccounts(t, a.status())
				})
			})
		}
	}
}

// guardCount returns a counter of a session.
func guardCount(s *device.Session, name string) uint64 {
	for _, c := range s.Counters() {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// Another process holds the kernel's lock of all interfaces for a long time. Neither a reset of the device nor
// the carrier, which wait for it, stall Run, nor does that look like a fault of the device (R07).
func TestR07LockedHostIsNoFault(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		release := a.tap.hold()
		a.deviceReset()
		checkRunAnswers(t, a, time.Minute)
		if n := a.dev.Opens(); n != 2 || a.status().State != report.InterfaceUp {
			t.Errorf("opened %d times, want 2; %s", n, a.status().State)
		}
		a.light(false)
		checkRunAnswers(t, a, time.Minute)
		a.light(true)
		checkRunAnswers(t, a, time.Minute)
		a.underlay().SetMTU(1400)
		checkRunAnswers(t, a, time.Minute)
		release()
		time.Sleep(time.Second)
		if mtu := a.status().MTU; mtu != 1344 {
			t.Errorf("MTU %d, want 1344", mtu)
		}
		a.underlay().SetMTU(1500)
		time.Sleep(5 * time.Second)
		reach(t, a, b)
		if n := a.dev.Opens(); n != 2 || !a.status().Carrier {
			t.Errorf("opened %d times, want 2; carrier %t", n, a.status().Carrier)
		}
	})
}

// The link of the underlay flaps under many interfaces, and their queue pairs wait for the kernel's lock of all
// interfaces to join their groups again. That is no fault of the device (R07).
func TestR07ManyInterfacesWaitForTheHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := bareHost(t, newFabric(t, 1), 1)
		a.verbs = newVerbs()
		a.run()
		a.up()
		hosts := []*testHost{a}
		for i := range 29 {
			h := a.sibling(byte(i+2), hca.PKeyDefault)
			h.up()
			hosts = append(hosts, h)
		}
		time.Sleep(time.Minute)
		for _, flap := range []func(){func() { a.light(false); time.Sleep(5 * time.Second); a.light(true) }, a.deviceReset} {
			opens := a.dev.Opens()
			a.verbs.slow("attach_mcast", 1500*time.Millisecond)
			flap()
			time.Sleep(30 * time.Second)
			a.verbs.slow("attach_mcast", 0)
			for _, h := range hosts {
				if s := h.status(); s.State != report.InterfaceUp {
					t.Errorf("%s: %s, %s", h.name, s.State, s.Detail)
				}
			}
			if n := a.dev.Opens() - opens; n > 1 {
				t.Errorf("the device was opened %d times", n)
			}
		}
		if n := a.dev.Status().Counts.Reasons[qprecovery.ReasonVerbStuck]; n > 0 {
			t.Errorf("a reset of the device was requested %d times", n)
		}
	})
}

// ib0 is deleted while another process holds the kernel's lock of all interfaces. Its end waits for the lock, and is
// no reason for the watchdog to end the daemon.
func TestDeletedInterfaceAnswersWhileTheHostIsLocked(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, _ *testHost) {
		release := a.tap.hold()
		a.tap.Delete()
		time.Sleep(time.Minute)
		select {
		case <-a.iface.done:
			t.Error("Run has ended without the lock, so the test proves nothing")
		default:
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := a.iface.Answers(ctx); err != nil {
			t.Error(err)
		}
		a.end = ErrDeleted
		release()
		synctest.Wait()
	})
}
