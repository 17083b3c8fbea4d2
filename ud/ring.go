package ud

import (
	"fmt"
	"sync/atomic"

	"ipoibd/hca"
)

// slotState is the owner of a slot.
type slotState uint8

// A slot's life: free -> held (take) -> posted (post) -> held (complete) ->
// free (give). A reset takes every slot back to free.
const (
	slotFree   slotState = iota // no owner
	slotHeld                    // the engine, which reads, writes or is about to post it
	slotPosted                  // the device, until completion
)

// ring divides registered memory into slots of equal size and tracks their
// owners. A work request's ID is generation<<32 | slot. Owned by one goroutine,
// except for the counters.
type ring struct {
	mr     hca.MR
	mem    []byte
	stride int
	gen    uint32
	state  []slotState
	free   []uint32 // a stack, because the slot used last is most likely still cached
	posted int

	stats ringStats
}

// ringStats are totals over all generations: posts = completions + reset +
// outstanding. Any goroutine may read them.
type ringStats struct {
	posts, completions, reset atomic.Uint64
	outstanding               atomic.Int64
	stale, foreign            atomic.Uint64
}

func newRing(slots int) *ring {
	r := &ring{state: make([]slotState, slots), free: make([]uint32, 0, slots)}
	r.refill()
	return r
}

// attach places the slots, each of stride bytes, in mr, with a new generation. All slots are
// free.
func (r *ring) attach(mr hca.MR, stride int, gen uint32) error {
	mem := mr.Bytes()
	if need := len(r.state) * stride; len(mem) < need {
		return fmt.Errorf("attach slots of %d bytes in total to a memory region of %d bytes: %w",
			need, len(mem), hca.ErrInvalid)
	}
	r.mr, r.mem, r.stride, r.gen = mr, mem, stride, gen
	return nil
}

// reset frees every slot, drops the memory, and returns how many slots were
// posted.
func (r *ring) reset() int {
	n := r.posted
	r.stats.reset.Add(uint64(n))
	r.stats.outstanding.Store(0)
	r.mr, r.mem, r.posted = nil, nil, 0
	r.refill()
	return n
}

// refill frees every slot; the lowest is taken first.
func (r *ring) refill() {
	r.free = r.free[:0]
	for slot := len(r.state) - 1; slot >= 0; slot-- {
		r.state[slot] = slotFree
		r.free = append(r.free, uint32(slot))
	}
}

// peek returns the slot that the i-th take from now will return; i must be less
// than the number of free slots.
func (r *ring) peek(i int) uint32 { return r.free[len(r.free)-1-i] }

// take makes a free slot held and returns it. There must be a free slot.
func (r *ring) take() uint32 {
	slot := r.peek(0)
	r.free = r.free[:len(r.free)-1]
	r.state[slot] = slotHeld
	return slot
}

// give frees a held slot.
func (r *ring) give(slot uint32) {
	r.state[slot] = slotFree
	r.free = append(r.free, slot)
}

// post notes that a held slot was posted to the device.
func (r *ring) post(slot uint32) {
	r.state[slot] = slotPosted
	r.posted++
	r.stats.posts.Add(1)
	r.stats.outstanding.Add(1)
}

// complete notes that the device returned a posted slot, which is then held.
func (r *ring) complete(slot uint32) {
	r.state[slot] = slotHeld
	r.posted--
	r.stats.completions.Add(1)
	r.stats.outstanding.Add(-1)
}

// id returns the work request ID of a slot.
func (r *ring) id(slot uint32) uint64 { return uint64(r.gen)<<32 | uint64(slot) }

// lookup returns the posted slot of a completion. An ID without a posted slot
// is counted: as stale if its generation is not the ring's, else as foreign.
func (r *ring) lookup(id uint64) (slot uint32, ok bool) {
	slot = uint32(id)
	switch {
	case uint32(id>>32) != r.gen:
		r.stats.stale.Add(1)
		return 0, false
	case uint64(slot) >= uint64(len(r.state)) || r.state[slot] != slotPosted:
		r.stats.foreign.Add(1)
		return 0, false
	}
	return slot, true
}

// isPosted is lookup without counting.
func (r *ring) isPosted(id uint64) bool {
	slot := uint32(id)
	return uint32(id>>32) == r.gen && uint64(slot) < uint64(len(r.state)) && r.state[slot] == slotPosted
}

// bytes returns a slot's memory.
func (r *ring) bytes(slot uint32) []byte {
	off := int(slot) * r.stride
	return r.mem[off : off+r.stride : off+r.stride]
}

// sge describes n bytes at off within a slot.
func (r *ring) sge(slot uint32, off, n int) hca.SGE {
	return r.mr.SGE(int(slot)*r.stride+off, n)
}
