package faults_test

import (
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
	"ipoibd/hca/faults"
)

func TestKinds(t *testing.T) {
	seen := map[string]bool{}
	for i, k := range faults.Kinds() {
		back, err := faults.ParseKind(k.String())
		if err != nil || back != k || int(k) != i || seen[k.String()] || k.String() == "" {
			t.Errorf("kind %d is called %q and parses as %v, %v", i, k, back, err)
		}
		seen[k.String()] = true
	}
	if len(seen) != int(faults.NumKind) {
		t.Errorf("%d kinds, want %d", len(seen), faults.NumKind)
	}
	for _, bad := range []string{"", "no_such", "SEND_ERROR_SQE", faults.NumName.String()} {
		if k, err := faults.ParseKind(bad); err == nil || !strings.Contains(err.Error(), bad) {
			t.Errorf("parse %q: %v, %v, want an error with that name", bad, k, err)
		}
	}
}

func TestInjectRefuses(t *testing.T) {
	bubble(t, func(r *rig) {
		for _, f := range []faults.Fault{
			{Kind: faults.NumKind},
			{Kind: faults.CQError, After: -1},
			{Kind: faults.CQError, Count: -1},
			{Kind: faults.PortDown, Count: math.MaxInt},
			{Kind: faults.Unplug, After: 1, Count: 1025},
			{Kind: faults.CQError, Verb: "modify_qp"},
			{Kind: faults.VerbHangs, Verb: "no_such_verb"},
		} {
			r.wantErr(r.dev.Inject(f), hca.ErrInvalid, "inject")
		}
	})
}

// The number of pending faults is bounded.
func TestPlansAreBounded(t *testing.T) {
	bubble(t, func(r *rig) {
		fault := faults.Fault{Kind: faults.SendErrorSQE, After: math.MaxInt, Count: math.MaxInt}
		for len(r.dev.Planned()) < 1024 {
			r.inject(fault)
		}
		r.wantErr(r.dev.Inject(fault), hca.ErrInvalid, "one more")
		r.wantErr(r.dev.Inject(faults.Fault{Kind: faults.PortUp}), hca.ErrInvalid, "inject an instant fault")
		r.dev.Clear()
		r.inject(faults.Fault{Kind: faults.PortUp})
	})
}

func TestClearWithdraws(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.SendErrorSQE, After: 2, Count: 3})
		r.postSend(1)
		if p := r.dev.Planned(); len(p) != 1 || p[0] != (faults.Fault{Kind: faults.SendErrorSQE, After: 1, Count: 3}) {
			r.Errorf("pending: %+v, want only the send error", p)
		}
		r.dev.Clear()
		r.poll(r.send)
		r.postSend(5)
		r.wantStatuses(r.send, 0, []hca.WCStatus{ok, ok, ok, ok, ok})
	})
}

// A fault fires exactly at the occasions that After and Count select.
func TestAfterAndCount(outer *testing.T) {
	rapid.Check(outer, func(t *rapid.T) {
		after, count := rapid.IntRange(0, 6).Draw(t, "after"), rapid.IntRange(1, 6).Draw(t, "count")
		r := newRig(outer)
		r.inject(faults.Fault{Kind: faults.ResetFails, After: after, Count: count})
		for i := range after + count + 3 {
			fired := r.modify(hca.QPRTS, hca.QPReset) != nil
			if want := i >= after && i < after+count; fired != want {
				t.Fatalf("occasion %d: fired %v, want %v", i, fired, want)
			}
		}
		if got := r.counted("fault_reset_fails"); got != uint64(count) {
			t.Fatalf("counted %d, want %d", got, count)
		}
		r.close()
	})
}

// A fault does not fire for a refused send; it fires for the next accepted one.
func TestRefusedSendIsNotStruck(t *testing.T) {
	bubble(t, func(r *rig) {
		r.inject(faults.Fault{Kind: faults.SwallowedSend})
		bad := r.sends(1)
		bad[0].UD.AH = nil
		if n, err := r.qp.PostSend(bad); n != 0 || err == nil {
			r.Errorf("posted %d: %v, want 0 and an error", n, err)
		}
		r.inject(faults.Fault{Kind: faults.SwallowedSend, After: 1 << 30})
		r.postSend(2)
		r.wantStatuses(r.send, 1, []hca.WCStatus{ok})
		if got := r.counted("fault_swallowed_send"); got != 1 {
			r.Errorf("fired %d times, want once", got)
		}
	})
}

// While no fault is pending, posts and polls do not allocate.
func TestNoAllocations(t *testing.T) {
	r := newRig(t)
	defer r.close()
	wrs := r.sends(4)
	wc := make([]hca.WC, 8)
	got := testing.AllocsPerRun(100, func() {
		if n, err := r.qp.PostSend(wrs); n != 4 {
			t.Fatal(err)
		}
		if n, err := r.send.Poll(wc); n != 4 {
			t.Fatal(n, err)
		}
	})
	if got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}
