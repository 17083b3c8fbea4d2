package iface

import (
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// An error event of a queue pair causes a query, also after the queue pair was reset in
// place.
func TestR02EventAfterAReset(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		for i := range 3 {
			before := a.verbs.count("query_qp")
			a.verbs.qpEvent(hca.EventQPFatal)
			synctest.Wait()
			if n := a.verbs.count("query_qp") - before; n != 1 {
				t.Errorf("after %d resets: %d queries for an event", i, n)
			}
			if err := a.iface.Reset(t.Context(), qprecovery.RungResetQP); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			reach(t, a, b)
		}
	})
}

// A rung that succeeds too late does not overlap with the next one.
func TestR06RungThatEndsLate(t *testing.T) {
	slowHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.inject(faults.Fault{Kind: faults.ResetFails})
		a.verbs.slow("create_qp", 700*time.Millisecond)
		a.verbs.slow("destroy_qp", 700*time.Millisecond)
		a.verbs.slow("modify_qp", 250*time.Millisecond)
		if err := a.iface.Reset(t.Context(), qprecovery.RungResetQP); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2350 * time.Millisecond) // the queue pair is recreated, too late
		for _, verb := range []string{"create_qp", "destroy_qp", "modify_qp"} {
			a.verbs.slow(verb, 0)
		}
		time.Sleep(time.Minute)
		a.waitUp()
		drainInbox(a, b)
		reach(t, a, b)
		t.Logf("%+v", a.status().Recovery.Rungs)
		checkAccounts(t, a.status())
	})
}

// A carrier that cannot be raised when recovery ends is tried again.
func TestR09CarrierThatIsStuck(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		reach(t, a, b)
		a.unplug()
		time.Sleep(time.Second)
		a.tap.jam(true)
		a.plug()
		time.Sleep(time.Minute)
		if s := a.status(); s.State == report.InterfaceUp || s.Carrier {
			t.Errorf("%s, carrier %v", s.State, s.Carrier)
		}
		a.tap.jam(false)
		time.Sleep(time.Minute)
		if s := a.status(); s.State != report.InterfaceUp || !s.Carrier {
			t.Errorf("%s, carrier %v", s.State, s.Carrier)
		}
		reach(t, a, b)
	})
}

// A verb that hangs outside any recovery also causes a reset of the device: when ib0 goes
// up or down, or a handle is closed.
func TestR08VerbHangsWithoutARecovery(t *testing.T) {
	goUp := func(h *testHost) { h.tap.SetUp(true) }
	goDown := func(h *testHost) { h.tap.SetUp(false) }
	for _, c := range []struct {
		verb    string
		besides []faults.Fault
		before  func(*testHost) // nil: nothing
		call    func(*testHost)
	}{
		{"create_qp", nil, goDown, goUp},
		{"create_cq", nil, goDown, goUp},
		{"modify_qp", nil, nil, goDown},
		{"query_qp", []faults.Fault{{Kind: faults.ResetFails}}, nil, goDown},
		{"destroy_qp", nil, nil, goDown},
		{"dealloc_pd", nil, nil, goDown},
	} {
		t.Run(c.verb, func(t *testing.T) {
			twoHosts(t, func(t *testing.T, a, b *testHost) {
				if c.before != nil {
					c.before(a)
					synctest.Wait()
				}
				opens := a.dev.Opens()
				a.inject(append(c.besides, faults.Fault{Kind: faults.VerbHangs, Verb: c.verb})...)
				c.call(a)
				time.Sleep(time.Second)
				synctest.Wait()
				if got := a.dev.Opens(); got != opens+1 {
					t.Errorf("opened %d times, were %d", got, opens)
				}
				a.tap.SetUp(true)
				a.waitUp()
				reach(t, a, b)
			})
		})
	}
}

// The device is lost again just before it is used: the interface waits for it as before, and ib0 has no carrier.
func TestR09NoCarrierWithoutADevice(t *testing.T) {
	twoHosts(t, func(t *testing.T, a, b *testHost) {
		a.unplug()
		synctest.Wait()
		a.onRun(func(f *Iface) {
			r := &f.rec
			r.step(qprecovery.DeviceUp{}) // its action finds no device
			r.follow()
			if r.ladder.State() != qprecovery.Detached || len(r.later) > 0 || r.fabric.held() != nil {
				t.Errorf("%v, %d pieces of work left, %v held", r.ladder.State(), len(r.later), r.fabric.held())
			}
		})
		time.Sleep(10 * time.Second)
		if s := a.status(); s.State != report.InterfaceWaiting || s.Recovery.State != "detached" || s.Carrier {
			t.Errorf("%s, %s, carrier %v", s.State, s.Recovery.State, s.Carrier)
		}
		a.plug()
		a.waitUp()
		reach(t, a, b)
	})
}
