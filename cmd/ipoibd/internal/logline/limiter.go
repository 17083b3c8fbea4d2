package logline

import (
	"log/slog"
	"maps"
	"time"
)

// Limits of the log. A message is a level, a text and a cause from one logger, so the
// same text from two interfaces is two messages.
const (
	// messageBurst lines of one message pass at once, further ones at intervals of
	// messageEvery. A recovery writes ten at most; two a second show that something
	// continues, and its latest state.
	messageBurst = 10
	messageEvery = 500 * time.Millisecond
	// totalBurst lines pass at once, further ones at intervals of totalEvery. So the
	// lines of a few dozen starting interfaces pass, and the log does not fill a disk
	// within hours.
	totalBurst = 200
	totalEvery = 20 * time.Millisecond
	// maxMessages bounds the messages that are counted separately, and thereby the
	// held lines. Further messages share one entry per level.
	maxMessages = 256
)

// rate is a token bucket (GCRA): the time at which it is full again.
type rate struct{ full time.Time }

// ready returns when the next line may pass.
func (r rate) ready(burst int, every time.Duration) time.Time {
	return r.full.Add(-time.Duration(burst-1) * every)
}

// take counts a line that passes now.
func (r *rate) take(now time.Time, every time.Duration) {
	if r.full.Before(now) {
		r.full = now
	}
	r.full = r.full.Add(every)
}

// key names a message.
type key struct {
	level  slog.Level
	logger string // its attributes and groups
	text   string
	cause  string // type, state, reason and property
}

// line is a record and the handler that formats it.
type line struct {
	record slog.Record
	to     slog.Handler
}

// limiter decides which lines pass. It has neither clock nor lock: its caller
// passes the time.
//
// A line that comes too early is held until its message may pass again, or until
// a later line of the message replaces it. So the last line of a burst always
// appears, and reports how many lines it replaced.
type limiter struct {
	total    rate
	messages map[key]*message
	waiting  []*message // those that hold a line, in the order in which they began to
}

// message is what the limiter keeps of one message.
type message struct {
	rate       rate
	held       *line
	suppressed uint64 // lines that were replaced since the first one was held
}

// add takes a line and reports whether it passes now; if not, it is held.
func (l *limiter) add(now time.Time, k key, ln line) bool {
	m := l.message(now, k)
	switch {
	case m.held != nil:
		m.suppressed++
	case now.Before(l.ready(m)):
		l.waiting = append(l.waiting, m)
	default:
		l.take(now, m)
		return true
	}
	m.held = &ln
	return false
}

// due removes the held lines that may pass now, or all of them, and calls pass with
// each and with the number of lines that it replaced.
func (l *limiter) due(now time.Time, all bool, pass func(ln line, suppressed uint64)) {
	var still []*message
	for _, m := range l.waiting {
		if !all && now.Before(l.ready(m)) {
			still = append(still, m)
			continue
		}
		pass(*m.held, m.suppressed)
		l.take(now, m)
		m.held, m.suppressed = nil, 0
	}
	l.waiting = still
}

// next returns when the first held line may pass, and false if none is held.
func (l *limiter) next() (at time.Time, ok bool) {
	for _, m := range l.waiting {
		if t := l.ready(m); !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// ready returns when a line of a message may pass, by its own rate and by the
// total one.
func (l *limiter) ready(m *message) time.Time {
	own, total := m.rate.ready(messageBurst, messageEvery), l.total.ready(totalBurst, totalEvery)
	if own.After(total) {
		return own
	}
	return total
}

func (l *limiter) take(now time.Time, m *message) {
	m.rate.take(now, messageEvery)
	l.total.take(now, totalEvery)
}

// message returns the entry of k, a new one if needed. When there is no room, it
// forgets the messages whose whole burst is available again. If that makes no room, it
// returns the entry that all further messages of the level share.
func (l *limiter) message(now time.Time, k key) *message {
	if m := l.messages[k]; m != nil {
		return m
	}
	if len(l.messages) >= maxMessages {
		maps.DeleteFunc(l.messages, func(_ key, m *message) bool { return m.held == nil && !m.rate.full.After(now) })
	}
	if len(l.messages) >= maxMessages {
		k = key{level: k.level}
	}
	m := l.messages[k]
	if m == nil {
		m = new(message)
		l.messages[k] = m
	}
	return m
}
