package ud

import (
	"fmt"

	"ipoibd/hca"
)

// waste is a batch of buffers for frames to be discarded; they all share the
// same memory.
type waste struct {
	bufs  [hca.Batch][]byte
	sizes [hca.Batch]int
}

func newWaste(maxMTU int) *waste {
	w := &waste{}
	room := make([]byte, TxStride(maxMTU, maxLarge))
	for i := range w.bufs {
		w.bufs[i] = room
	}
	return w
}

// Discard reads a batch of frames, blocking like Pump, and drops them: in a long
// outage they would be stale before they could be sent. It does not use the queue
// pair and may run concurrently with Attach, Detach and Drain, but not with Pump.
func (t *Tx) Discard() error {
	n, err := t.cfg.Source.ReadBatch(t.waste.bufs[:], t.waste.sizes[:])
	t.tally.add(Read, n)
	t.tally.add(Held, n)
	if err != nil {
		return fmt.Errorf("discard frames: %w", err)
	}
	return nil
}
