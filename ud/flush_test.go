package ud

import (
	"testing"
	"time"

	"ipoibd/hca"
)

// Flush posts what waits, takes completions, and reads no frame; what the queue pair does not complete by
// the deadline stays.
func TestTxFlush(t *testing.T) {
	b := newTxBench(t, 128)
	for range 5 {
		b.src.add(toB(100))
	}
	b.pump(t)
	b.src.add(toB(100))
	b.Inject(destAll, make([]byte, 60))
	if err := b.Flush(time.Now()); err != nil {
		t.Fatal(err)
	}
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 5, "tx_injected": 1, "tx_posts": 6, "tx_outstanding": 6})
	b.qp.completeSends(6, hca.WCSuccess)
	if err := b.Flush(time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	checkCounts(t, b.Counters(), map[string]uint64{"tx_read": 5, "tx_injected": 1, "tx_posts": 6, "tx_completions": 6, "tx_sent": 6})
	b.Detach()
	if err := b.Flush(time.Now()); err != ErrDetached { //nolint:errorlint // as documented
		t.Errorf("detached: %v", err)
	}
}
