package journal

import (
	"context"
	"sync"
	"time"
)

// Size of the ring: some hundred recoveries, well below a megabyte.
const Size = 1024

// Journal is a ring of entries, safe for any goroutine.
type Journal struct {
	mu    sync.Mutex
	ring  [Size]Entry // number n at n%Size
	last  uint64
	added chan struct{} // closed by the next Add
}

// New returns an empty journal.
func New() *Journal { return &Journal{added: make(chan struct{})} }

// Add gives an entry its number, and the present time where it has none. Two
// ladders may report a moment's events in another order than they happened: one
// that comes late is given the time of the entry before it, so that times follow
// the numbers. Add pushes the oldest out and never waits for a reader.
func (j *Journal) Add(e Entry) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if before := j.ring[j.last%Size].Time; e.Time.Before(before) {
		e.Time = before
	}
	j.last++
	e.Seq = j.last
	j.ring[e.Seq%Size] = e
	close(j.added)
	j.added = make(chan struct{})
}

// Since returns the entries kept whose number is above seq, oldest first.
func (j *Journal) Since(seq uint64) []Entry {
	entries, _ := j.since(seq)
	return entries
}

// Wait returns the same as soon as there is one, or the error of ctx.
func (j *Journal) Wait(ctx context.Context, seq uint64) ([]Entry, error) {
	for {
		entries, added := j.since(seq)
		if len(entries) > 0 {
			return entries, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-added:
		}
	}
}

// since also returns what is closed when there is more.
func (j *Journal) since(seq uint64) ([]Entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.last > Size {
		seq = max(seq, j.last-Size)
	}
	var out []Entry
	for n := seq + 1; n <= j.last && n > seq; n++ {
		out = append(out, j.ring[n%Size])
	}
	return out, j.added
}
