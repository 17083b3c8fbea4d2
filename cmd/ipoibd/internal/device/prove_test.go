package device

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// Three unanswered probes on a fresh queue pair prove that a device has frozen, while the
// port is active and the wire is not full. The proof leaves nothing behind.
func TestR08Prove(t *testing.T) {
	dead := faults.Fault{Kind: faults.CompletionsStop, Count: math.MaxInt}
	for _, c := range []struct {
		name   string
		faults []faults.Fault
		wire   uint64 // by which WireBlocked grows with each call
		want   bool
		within time.Duration
	}{
		{"all is well", nil, 0, false, 0},
		{"no completions", []faults.Fault{dead}, 0, true, proofProbes * proofLimit},
		{"deaf", []faults.Fault{{Kind: faults.DeafReceive, Count: math.MaxInt}}, 0, true, proofProbes * proofLimit},
		{"sends never complete", []faults.Fault{{Kind: faults.SwallowedSend, Count: math.MaxInt}}, 0, true, proofProbes * proofLimit},
		{"the first two sends never complete", []faults.Fault{{Kind: faults.SwallowedSend, Count: 2}}, 0, false, 2 * proofLimit},
		{"a send fails", []faults.Fault{{Kind: faults.SendErrorErr}}, 0, false, 0},
		{"no completions, port down", []faults.Fault{dead, {Kind: faults.PortDown}}, 0, false, proofProbes * proofLimit},
		{"no completions, wire full", []faults.Fault{dead}, 1, false, proofProbes * proofLimit},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e, rec, faulty := openRecorded(t)
				rec.wire = c.wire
				for _, f := range c.faults {
					if err := faulty.Inject(f); err != nil {
						t.Fatal(err)
					}
				}
				rec.closed = nil
				start := time.Now()
				frozen, err := e.Prove()
				if took := time.Since(start); frozen != c.want || err != nil || took != c.within {
					t.Errorf("frozen %v, %v, after %v; want %v after %v", frozen, err, took, c.want, c.within)
				}
				if want := []string{"QP", "CQ", "MR"}; !slices.Equal(rec.closed, want) {
					t.Errorf("closed %v, want %v", rec.closed, want)
				}
				if state, err := e.State(); err != nil || state != hca.QPRTS {
					t.Errorf("the endpoint's own queue pair: %v, %v", state, err)
				}
			})
		})
	}
}

// A proof that cannot create its queue pair returns an error and proves nothing.
func TestR08ProveFails(t *testing.T) {
	e, rec, faulty := openRecorded(t)
	rec.closed = nil
	if err := faulty.Inject(faults.Fault{Kind: faults.CreateQPFails}); err != nil {
		t.Fatal(err)
	}
	if frozen, err := e.Prove(); frozen || err == nil || !slices.Equal(rec.closed, []string{"CQ", "MR"}) {
		t.Errorf("frozen %v, %v; closed %v", frozen, err, rec.closed)
	}
}

// A device that cannot release the proof's queue pair yet is frozen nevertheless.
func TestR08ProofStandsAlthoughItsObjectsAreBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, rec, faulty := openRecorded(t)
		if err := faulty.Inject(faults.Fault{Kind: faults.CompletionsStop, Count: math.MaxInt}); err != nil {
			t.Fatal(err)
		}
		rec.busy, rec.closed = true, nil
		if frozen, err := e.Prove(); !frozen || err != nil || rec.busy {
			t.Errorf("frozen %v, %v", frozen, err)
		}
		if err := e.Close(); err != nil || !slices.Contains(rec.closed, "MR") {
			t.Errorf("close: %v; closed %v", err, rec.closed)
		}
	})
}

// A proof whose queue pair is stuck in the device cannot release its CQ at once. Closing
// the endpoint releases it, so the device can be closed too (R10).
func TestR08ProofThatIsStuckLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, rec, faulty := openRecorded(t)
		if err := faulty.Inject(faults.Fault{Kind: faults.VerbHangs, Verb: "destroy_qp"}); err != nil {
			t.Fatal(err)
		}
		if _, err := e.Prove(); !errors.Is(err, hca.ErrStuck) {
			t.Errorf("prove: %v", err)
		}
		err := errors.Join(e.Close(), e.session.Close())
		faulty.Release()
		synctest.Wait()
		if !slices.Contains(rec.closed, "device") {
			t.Errorf("the device is not closed (%v), only %v", err, rec.closed)
		}
	})
}

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
