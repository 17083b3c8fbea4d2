package iface

import (
	"time"

	"ipoibd/qprecovery"
)

// Pauses before the next attempt to open the queue pair, as long as those of kernel IPoIB
// before it joins a group again: doubling from 1 s to 16 s.
const (
	firstRetry = time.Second
	lastRetry  = 16 * time.Second
)

// backoff is the time of the next attempt. Its zero value waits for nothing.
type backoff struct {
	at    time.Time // zero: no attempt is planned
	pause time.Duration
	since time.Time // the last success, zero after a failure
}

// fail plans the next attempt, after a longer pause than the last one. A success that
// lasted as long as the longest pause clears the history. A shorter one does not, because
// otherwise a service that fails at once would be tried forever without a pause.
func (b *backoff) fail(now time.Time) {
	if !b.since.IsZero() && now.Sub(b.since) >= lastRetry {
		b.pause = 0
	}
	b.pause = qprecovery.BackOff(b.pause, firstRetry, lastRetry)
	b.at, b.since = now.Add(b.pause), time.Time{}
}

// succeed records that an attempt succeeded.
func (b *backoff) succeed(now time.Time) { b.at, b.since = time.Time{}, now }

// reset forgets all failures.
func (b *backoff) reset() { *b = backoff{} }

// waiting reports whether the next attempt is not due yet.
func (b *backoff) waiting(now time.Time) bool { return b.at.After(now) }

// due reports, once, that the time of the next attempt has come.
func (b *backoff) due(now time.Time) bool {
	if b.at.IsZero() || b.waiting(now) {
		return false
	}
	b.at = time.Time{}
	return true
}

// turn gives the channels of Run's select a priority: it examines them one by one, in the
// order in which they are to be served. Once one has something, it hides the channels
// that follow until the next turn.
type turn struct{ found bool }

// listen returns the channel to receive from in this turn, or nil if an earlier one has
// something.
func listen[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	t.found = len(ch) > 0
	return ch
}

// last is listen for the channels of the lowest priority. Among them there is no order: a
// flood on one does not keep another waiting.
func last[T any](t *turn, ch <-chan T) <-chan T {
	if t.found {
		return nil
	}
	return ch
}

// alarm is listen for a timer. If the deadline is due, alarm delivers even if the timer has
// not fired yet.
func (t *turn) alarm(timer *time.Timer, due bool) <-chan time.Time {
	switch {
	case t.found:
		return nil
	case due:
		t.found = true
		return overdue
	}
	return timer.C
}

// overdue always delivers.
var overdue = func() <-chan time.Time {
	ch := make(chan time.Time)
	close(ch)
	return ch
}()
