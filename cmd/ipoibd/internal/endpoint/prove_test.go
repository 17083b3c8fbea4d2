package endpoint

import (
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
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
				if want := []string{"AH", "QP", "CQ", "MR"}; !slices.Equal(rec.closed, want) {
					t.Errorf("closed %v, want %v", rec.closed, want)
				}
				if state, err := e.State(); err != nil || state != hca.QPRTS {
					t.Errorf("the endpoint's own queue pair: %v, %v", state, err)
				}
			})
		})
	}
}

// A port that is a limited member of the partition does not receive its own probes, so sent ones are answers.
func TestR08ProveOfLimitedMember(t *testing.T) {
	for name, c := range map[string]struct {
		fault faults.Kind
		want  bool
	}{
		"probes do not return": {faults.DeafReceive, false},
		"no completions":       {faults.CompletionsStop, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			e, _, faulty := openRecorded(t)
			e.Spec.Plan.Limited = true
			if err := faulty.Inject(faults.Fault{Kind: c.fault, Count: math.MaxInt}); err != nil {
				t.Fatal(err)
			}
			if frozen, err := e.Prove(); frozen != c.want || err != nil {
				t.Errorf("%s: frozen %v, %v; want %v", name, frozen, err, c.want)
			}
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
