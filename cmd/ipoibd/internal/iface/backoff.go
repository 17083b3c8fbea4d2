package iface

import (
	"time"

	"ipoibd/qprecovery"
)

// due reports whether a deadline has come, and clears it then. Zero means never.
func due(at *time.Time, now time.Time) bool {
	if at.IsZero() || now.Before(*at) {
		return false
	}
	*at = time.Time{}
	return true
}

// earliest returns the earliest of some deadlines; zero means never.
func earliest(all ...time.Time) (at time.Time) {
	for _, a := range all {
		at = qprecovery.Earlier(at, a)
	}
	return at
}

// Pauses before the next attempt to open the queue pair, as long as in the kernel's IPoIB
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
