package ud

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/hca"
)

// await arms the CQ and waits for a completion until the deadline.
func (t *Tx) await(until time.Time) error {
	if err := t.cq.Arm(); err != nil {
		return fmt.Errorf("arm send CQ: %w", err)
	}
	before := t.ring.posted
	if err := t.reap(); err != nil || t.ring.posted < before {
		return err
	}
	if err := t.cq.Wait(until); err != nil {
		return fmt.Errorf("wait for send completions: %w", err)
	}
	return t.reap()
}

// reap takes all available completions. If the device has failed, it completes every
// posted send with WR_FLUSH_ERR instead, because the device no longer will (R18).
func (t *Tx) reap() error {
	for {
		n, err := t.cq.Poll(t.scratch.wcs[:])
		if err != nil {
			for errors.Is(err, hca.ErrIO) && t.ring.posted > 0 {
				slot := t.release()
				t.fail(&hca.WC{
					ID:     t.ring.id(slot),
					Status: hca.WCWRFlushErr,
					Opcode: hca.WCSend,
					QPN:    t.qp.Num(),
				}, slot)
			}
			return fmt.Errorf("poll send CQ: %w", err)
		}
		for i := range n {
			t.complete(&t.scratch.wcs[i])
		}
		if n < hca.Batch {
			return nil
		}
	}
}

// complete ends the send of wc and the unsignaled sends before it, which have
// succeeded.
func (t *Tx) complete(wc *hca.WC) {
	last, ok := t.ring.lookup(wc.ID)
	if !ok {
		return
	}
	sent := 0
	for slot := t.release(); slot != last; slot = t.release() {
		sent++
	}
	if wc.Status == hca.WCSuccess {
		sent++
	} else {
		t.fail(wc, last)
	}
	t.tally.add(Sent, sent)
}

// release frees the oldest posted slot and returns it.
func (t *Tx) release() uint32 {
	slot := t.order.pop()
	t.ring.complete(slot)
	t.probe.released(slot, true)
	t.ring.give(slot)
	return slot
}

func (t *Tx) fail(wc *hca.WC, slot uint32) {
	t.failed.add(wc.Status)
	if t.cfg.OnFailure != nil {
		t.cfg.OnFailure(Failure{WC: *wc, SGE: t.sge[slot], Dest: t.dest[slot]})
	}
}
