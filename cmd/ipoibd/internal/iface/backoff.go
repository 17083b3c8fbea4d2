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
	at    time.Time // zero: no try is planned
	pause time.Duration
	since time.Time // the last success, zero after a failure
}

// fail plans the next try, after a longer pause than the last one. A success
// that lasted as long as the longest pause wipes out what was before it; a
// shorter one does not, or what fails at once would be tried for ever without a
// pause.
func (b *backoff) fail(now time.Time) {
	if !b.since.IsZero() && now.Sub(b.since) >= lastRetry {
		b.pause = 0
	}
	b.pause = min(max(2*b.pause, firstRetry), lastRetry)
	b.at, b.since = now.Add(b.pause), time.Time{}
}

// succeed notes that a try succeeded.
func (b *backoff) succeed(now time.Time) { b.at, b.since = time.Time{}, now }

// reset forgets all failures.
func (b *backoff) reset() { *b = backoff{} }

// waiting reports whether the next try is not due yet.
func (b *backoff) waiting(now time.Time) bool { return b.at.After(now) }

// due reports, once, that the time of the next try has come.
func (b *backoff) due(now time.Time) bool {
	if b.at.IsZero() || b.waiting(now) {
		return false
	}
	b.at = time.Time{}
	return true
}
