package memfabric

import (
	"cmp"
	"math/rand/v2"
	"time"
)

// defaultReorderBy delays a reordered datagram by more than the duration of a batch.
const defaultReorderBy = time.Millisecond

// Conditions impair every direction of a fabric. The zero value is a perfect
// network without delay. Probabilities are 0 to 1, each per datagram and
// receiver.
type Conditions struct {
	Loss      float64
	Duplicate float64
	Reorder   float64       // of being late by ReorderBy, so that later ones overtake
	ReorderBy time.Duration // 1 ms when zero
	Delay     time.Duration // of every datagram
	Jitter    time.Duration // up to this much more, evenly spread
}

// lateness draws how much later than its sending a datagram is due.
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

// hit draws an event of probability p; certain outcomes draw nothing.
func (d *dice) hit(p float64) bool { return p > 0 && (p >= 1 || d.rnd.Float64() < p) }
