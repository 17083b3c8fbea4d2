package memfabric

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// defaultReorderBy delays a reordered datagram by more than the duration of a batch.
const defaultReorderBy = time.Millisecond

// Conditions impair every direction of a fabric. The zero value is a perfect network
// without delay. Probabilities are 0 to 1, and apply to each datagram and receiver.
type Conditions struct {
	Loss      float64
	Duplicate float64
	Reorder   float64       // of a delay by ReorderBy, so that later datagrams overtake it
	ReorderBy time.Duration // 1 ms when zero
	Delay     time.Duration // of every datagram
	Jitter    time.Duration // an additional delay up to this, evenly distributed
}

// lateness draws the delay of a datagram.
func (c *Conditions) lateness(d *dice) time.Duration {
	late := c.Delay
	if c.Jitter > 0 {
		late += time.Duration(d.rnd.Int64N(int64(c.Jitter) + 1))
	}
	if d.hit(c.Reorder) {
		late += cmp.Or(c.ReorderBy, defaultReorderBy)
	}
	return late
}

// dice is the random sequence of one direction.
type dice struct{ rnd *rand.Rand }

// hit draws an event of probability p. It draws nothing if the outcome is certain.
func (d *dice) hit(p float64) bool { return p > 0 && (p >= 1 || d.rnd.Float64() < p) }
