package ud

import (
	"errors"
	"slices"
	"testing"
	"time"

	"ipoibd/hca"
)

// errFailed is the error of every call on a failed device.
var errFailed = &hca.VerbError{Verb: "poll_cq", Err: hca.ErrIO}

// On a failed device every posted send completes once, in order, with WR_FLUSH_ERR, including
// unsignaled ones and those whose completion was not polled before the failure. Frames that the
// device has refused do not complete.
func TestR18FailedDeviceFlushesSends(t *testing.T) {
	b := newTxBench(t, 128)
	for range 10 {
		b.src.add(toB(100))
	}
	b.pump(t)
	b.qp.completeSends(3, hca.WCLocProtErr)
	b.pump(t)
	b.src.add(toB(100), toB(100), toB(100))
	b.qp.refuse, b.qp.refuseAfter = errFailed, 1
	if err := b.Pump(); !errors.Is(err, hca.ErrIO) {
		t.Fatalf("post: %v", err)
	}
	want := slices.Clone(b.qp.sends)
	b.qp.completeSends(2, hca.WCSuccess) // not polled before the failure
	b.qp.sendCQ.err = errFailed
	for range 2 {
		if err := b.Pump(); !errors.Is(err, hca.ErrIO) {
			t.Fatalf("pump: %v", err)
		}
	}
	flushed := b.fails[3:]
	if len(flushed) != 8 || len(want) != 8 {
		t.Fatalf("%d of %d sends flushed, want 8", len(flushed), len(want))
	}
	for i, f := range flushed {
		if f.WC.ID != want[i].id || f.WC.Status != hca.WCWRFlushErr || f.WC.QPN != qpnA || f.SGE != want[i].sge || f.Dest != destB {
			t.Errorf("flushed: %+v, want %+v", f, want[i])
		}
	}
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 13, "tx_posts": 11, "tx_completions": 11,
		"tx_wc_loc_prot_err": 3, "tx_wc_wr_flush_err": 8, "tx_drop_post_refused": 2,
	})
	b.checkRing(t)
}

// A request that a reset has dropped is not flushed afterwards.
func TestR18ResetRequestsAreNotFlushed(t *testing.T) {
	b := newTxBench(t, 128)
	b.src.add(toB(100), toB(100))
	b.pump(t)
	b.Detach()
	b.attach(t, 2)
	b.src.add(toB(100))
	b.pump(t)
	b.qp.sendCQ.err = errFailed
	if err := b.Pump(); !errors.Is(err, hca.ErrIO) {
		t.Fatalf("pump: %v", err)
	}
	checkCounts(t, b.Counters(), map[string]uint64{
		"tx_read": 3, "tx_posts": 3, "tx_taken_back": 2, "tx_completions": 1, "tx_drop_reset": 2, "tx_wc_wr_flush_err": 1,
	})
}

// On a failed device every posted receive completes once with WR_FLUSH_ERR, and its buffer is
// not posted again. A later queue pair gets all buffers.
func TestR18FailedDeviceFlushesReceives(t *testing.T) {
	b := newRxBench(t, rxSlots)
	b.qp.receive(fromB(100), gidA)
	b.pump(t)
	b.qp.receive(fromB(100), gidA) // not polled before the failure
	late := b.qp.recvCQ.wcs[0]
	b.qp.recvCQ.err = errFailed
	for range 2 {
		if err := b.Pump(time.Time{}); !errors.Is(err, hca.ErrIO) {
			t.Fatalf("pump: %v", err)
		}
	}
	if len(b.fails) != rxSlots || b.Outstanding() != 0 {
		t.Errorf("%d receives flushed, %d posted; want %d and none", len(b.fails), b.Outstanding(), rxSlots)
	}
	seen := map[uint64]bool{}
	for _, f := range b.fails {
		seen[f.WC.ID] = f.WC.Status == hca.WCWRFlushErr && f.WC.QPN == qpnA
	}
	if len(seen) != rxSlots || !seen[late.ID] {
		t.Errorf("flushed receives %v, want each once", seen)
	}
	want := map[string]uint64{
		"rx_posts": rxSlots + 1, "rx_completions": rxSlots + 1, "rx_received": 1, "rx_delivered": 1, "rx_wc_wr_flush_err": rxSlots,
	}
	checkCounts(t, b.Counters(), want)
	b.checkRing(t)

	b.Detach()
	b.qp.recvCQ.err, b.qp.recvs = nil, nil
	b.attach(t, 2)
	b.pump(t) // polls the late completion
	if c := counts(b.Counters()); c["rx_stale_completions"] != 1 || c["rx_received"] != 1 || c["rx_outstanding"] != rxSlots {
		t.Errorf("counters %v", c)
	}
}
