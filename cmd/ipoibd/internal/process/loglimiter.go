package process

import (
	"log/slog"
	"maps"
	"time"

	"golang.org/x/time/rate"
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

// limiter decides which lines pass. It reads no clock: its caller passes the time.
//
// A line that comes too early is held until its message may pass again, or until
// a later line of the message replaces it. So the last line of a burst always
// appears, and reports how many lines it replaced.
type limiter struct {
	total    *rate.Limiter
	messages map[key]*message
	waiting  []*message // those that hold a line, in the order in which they began to
}

func newLimiter() limiter {
	return limiter{total: rate.NewLimiter(rate.Every(totalEvery), totalBurst), messages: make(map[key]*message)}
}

// message is what the limiter keeps of one message.
type message struct {
	rate       *rate.Limiter
	held       *line
	passes     time.Time // when the held line may pass: it has reserved both rates
	suppressed uint64    // lines that were replaced since the first one was held
}

// add takes a line and reports whether it passes now; if not, it is held.
func (l *limiter) add(now time.Time, k key, ln line) bool {
	m := l.message(now, k)
	if m.held != nil {
		m.held = &ln
		m.suppressed++
		return false
	}
	wait := max(m.rate.ReserveN(now, 1).DelayFrom(now), l.total.ReserveN(now, 1).DelayFrom(now))
	if wait == 0 {
		return true
	}
	m.held, m.passes = &ln, now.Add(wait)
	l.waiting = append(l.waiting, m)
	return false
}

// due removes the held lines that may pass now, or all of them, and calls pass with
// each and with the number of lines that it replaced.
func (l *limiter) due(now time.Time, all bool, pass func(ln line, suppressed uint64)) {
	var still []*message
	for _, m := range l.waiting {
		if !all && now.Before(m.passes) {
			still = append(still, m)
			continue
		}
		pass(*m.held, m.suppressed)
		m.held, m.suppressed = nil, 0
	}
	l.waiting = still
}

// next returns when the first held line may pass, and false if none is held.
func (l *limiter) next() (at time.Time, ok bool) {
	for _, m := range l.waiting {
		if !ok || m.passes.Before(at) {
			at, ok = m.passes, true
		}
	}
	return at, ok
}

// message returns the entry of k, a new one if needed. When there is no room, it
// forgets the messages whose whole burst is available again. If that makes no room, it
// returns the entry that all further messages of the level share.
func (l *limiter) message(now time.Time, k key) *message {
	if m := l.messages[k]; m != nil {
		return m
	}
	if len(l.messages) >= maxMessages {
		maps.DeleteFunc(l.messages, func(_ key, m *message) bool { return m.held == nil && m.rate.TokensAt(now) >= messageBurst })
	}
	if len(l.messages) >= maxMessages {
		k = key{level: k.level}
	}
	m := l.messages[k]
	if m == nil {
		m = &message{rate: rate.NewLimiter(rate.Every(messageEvery), messageBurst)}
		l.messages[k] = m
	}
	return m
}
