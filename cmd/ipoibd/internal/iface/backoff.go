package iface

import "time"

// Pauses before another try to open the queue pair, as kernel IPoIB joins
// groups: doubling from 1 s to 16 s.
const (
	firstRetry = time.Second
	lastRetry  = 16 * time.Second
)

// backoff is the time of the next try. Its zero value waits for nothing.
type backoff struct {
	at    time.Time // zero: no try is due
	pause time.Duration
}

// fail sets the next try after a longer pause than the last.
func (b *backoff) fail(now time.Time) {
	b.pause = min(max(2*b.pause, firstRetry), lastRetry)
	b.at = now.Add(b.pause)
}

// reset forgets all failures.
func (b *backoff) reset() { *b = backoff{} }

// waiting reports whether the next try is not due yet.
func (b *backoff) waiting(now time.Time) bool { return b.at.After(now) }
