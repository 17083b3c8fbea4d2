package record

import "sync/atomic"

// recordEvery is the number of bytes of data for which there is a description: so many small
// packets fill both arrays at about the same time.
const recordEvery = 512

// ring is a queue of records with one producer and one consumer. Records are numbered from 0,
// and so are the bytes of data: number n is at n modulo the length of its array. The bytes of
// one record are contiguous, so bytes at the end of the array may stay unused.
type ring struct {
	records []slot
	data    []byte

	put, taken atomic.Uint64 // records; the producer writes put, the consumer taken
	freed      atomic.Uint64 // bytes; written by the consumer
	used       uint64        // bytes; the producer's
}

type slot struct {
	Record
	end uint64 // number of the first byte after this record
}

func newRing(bytes int) *ring {
	return &ring{records: make([]slot, max(1, bytes/recordEvery)), data: make([]byte, bytes)}
}

// reserve returns the next free record and n bytes for it, or nil if either is missing. Nothing
// is visible to the consumer before commit; another reserve takes the same space.
func (r *ring) reserve(n int) (*slot, []byte) {
	size, put := uint64(len(r.data)), r.put.Load()
	if put-r.taken.Load() == uint64(len(r.records)) {
		return nil, nil
	}
	start := r.used
	if at := start % size; at+uint64(n) > size {
		start += size - at
	}
	end := start + uint64(n)
	if end-r.freed.Load() > size {
		return nil, nil
	}
	s := &r.records[put%uint64(len(r.records))]
	s.end = end
	at := start % size
	return s, r.data[at : at+uint64(n) : at+uint64(n)]
}

// commit makes the reserved record visible.
func (r *ring) commit(s *slot) {
	r.used = s.end
	r.put.Add(1)
}

// peek returns the oldest record, or nil.
func (r *ring) peek() *slot {
	taken := r.taken.Load()
	if taken == r.put.Load() {
		return nil
	}
	return &r.records[taken%uint64(len(r.records))]
}

// release frees the oldest record and its bytes.
func (r *ring) release() {
	r.freed.Store(r.records[r.taken.Load()%uint64(len(r.records))].end)
	r.taken.Add(1)
}
