// Package journal keeps the latest events that an operator may want to read later: the rungs
// that recoveries entered and why, and how each recovery ended.
//
// A [Journal] is a ring of the last [Size] entries. Entries are numbered from 1 without gaps.
// The number lets a reader continue where it stopped ([Journal.Since], [Journal.Wait]) and
// notice entries that it missed.
package journal

import (
	"context"
	"strings"
	"sync"
	"time"
)

// Size of the ring: enough for some hundred recoveries, well below a megabyte.
const Size = 1024

// maxText is the length to which the text of an entry is cut, in bytes: lists of processes, for example, have no limit.
const maxText = 8 << 10

// Journal is a ring of entries. Any goroutine may call its methods.
type Journal struct {
	mu    sync.Mutex
	ring  [Size]Entry // number n at n%Size
	last  uint64
	added chan struct{} // closed by the next Add
}

// New returns an empty journal.
func New() *Journal { return &Journal{added: make(chan struct{})} }

// Add numbers an entry and replaces the oldest one with it. It never waits for a reader. An
// entry without a time gets the current time. Ladders may report simultaneous events out of
// order: an entry that is older than the previous one gets the time of that one, so that
// times never decrease.
func (j *Journal) Add(e Entry) {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	if len(e.Text) > maxText {
		e.Text = strings.ToValidUTF8(e.Text[:maxText], "") + "..."
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

// Restore takes over the entries of another process's journal, oldest first. The journal must be empty.
func (j *Journal) Restore(entries []Entry) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, e := range entries {
		if e.Seq > j.last {
			j.last = e.Seq
			j.ring[e.Seq%Size] = e
		}
	}
}

// Since returns the entries in the ring whose number is above seq, oldest first.
func (j *Journal) Since(seq uint64) []Entry {
	entries, _ := j.since(seq)
	return entries
}

// Wait is like Since, but blocks until there is such an entry or ctx ends.
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

// since is Since, and also returns the channel that the next Add closes.
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
