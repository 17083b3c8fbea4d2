package ud

import (
	"fmt"

	"ipoibd/hca"
)

// waste is where frames are read to that nobody wants: all into the same memory.
type waste struct {
	bufs  [hca.Batch][]byte
	sizes [hca.Batch]int
}

func newWaste(maxMTU int) *waste {
	w := &waste{}
	room := make([]byte, TxStride(maxMTU))
	for i := range w.bufs {
		w.bufs[i] = room
	}
	return w
}

// Discard reads a batch of frames, which blocks as in Pump, and drops them: after
// an outage that was too long for them to be of use to anybody. It touches no
// queue pair, and may run beside Attach, Detach and Drain, but not beside Pump.
func (t *Tx) Discard() error {
	n, err := t.cfg.Source.ReadBatch(t.waste.bufs[:], t.waste.sizes[:])
	t.tally.add(Read, n)
	t.tally.add(Held, n)
	if err != nil {
		return fmt.Errorf("discard frames: %w", err)
	}
	return nil
}
