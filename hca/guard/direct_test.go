package guard_test

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/guard"
)

// The verbs of a backend that never blocks are called directly. Those that may wait for the host or a peer nevertheless, and
// all verbs of other backends, run on goroutines of their own.
func TestVerbsThatNeverBlock(t *testing.T) {
	group := hca.MulticastGroup{MGID: hca.GID{0: 0xff}}
	for _, never := range []bool{true, false} {
		f := newFake()
		f.neverBlocks = never
		r := rigOf(t, f, guard.Options{})
		_, queried := r.dev.QueryPort(1)
		_, asked := r.qp.Query()
		err := errors.Join(queried, asked, r.qp.AttachMulticast(group), r.qp.DetachMulticast(group), r.qp.Modify(hca.QPAttr{State: hca.QPInit}, 0))
		if err != nil {
			t.Fatal(err)
		}
		r.close()
		mayWait := []string{"attach_mcast", "close_device", "create_ah", "reg_mr"}
		if len(f.callers) != 16 {
			t.Errorf("%d verbs: %v", len(f.callers), slices.Collect(maps.Keys(f.callers)))
		}
		for verb, caller := range f.callers {
			if direct := caller == goroutine(); direct != (never && !slices.Contains(mayWait, verb)) {
				t.Errorf("never blocks: %t; %s was called directly: %t", never, verb, direct)
			}
		}
	}
}

// A failed device refuses verbs that never block, too, and an error that means that the device has failed fails it.
func TestVerbsThatNeverBlockFail(t *testing.T) {
	f := newFake()
	f.neverBlocks = true
	r := rigOf(t, f, guard.Options{})
	f.fail("modify_qp", hca.ErrIO)
	if err := r.qp.Modify(hca.QPAttr{State: hca.QPInit}, 0); !errors.Is(err, hca.ErrIO) || r.dev.Err() == nil {
		t.Errorf("%v; the device: %v", err, r.dev.Err())
	}
	delete(f.callers, "query_qp")
	if _, err := r.qp.Query(); !errors.Is(err, hca.ErrIO) || f.callers["query_qp"] != "" {
		t.Errorf("after the failure: %v, called: %q", err, f.callers["query_qp"])
	}
	r.close()
}
