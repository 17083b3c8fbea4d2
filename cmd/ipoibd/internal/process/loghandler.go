package process

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
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

// LogHandler passes records on to another handler, within the limits of the log. A record
// that comes too early is held until its message may pass again, or until a later record of
// the message replaces it, so the last one of a burst always appears. It keeps its own time,
// so it may be written after later ones; its attribute "suppressed" counts the records that
// were replaced.
type LogHandler struct {
	next    slog.Handler
	logger  string // attributes and groups; loggers that differ in them do not share messages
	limiter *limiter
}

// limiter is the state that a LogHandler shares with the handlers derived from it.
type limiter struct {
	mu       sync.Mutex // guards what follows, and the messages
	total    *rate.Limiter
	messages map[key]*message
}

// key names a message.
type key struct {
	level  slog.Level
	logger string // its attributes and groups
	text   string
	cause  string // type, state, reason and property
}

// message is the limiter's state of one message.
type message struct {
	rate       *rate.Limiter
	held       *slog.Record // that has to wait; nil: none
	to         slog.Handler // that formats it
	suppressed uint64       // records that it and its predecessors have replaced
}

// LimitLog returns a handler that passes records on to next, which must not block.
// The caller calls Flush at the end.
func LimitLog(next slog.Handler) *LogHandler {
	return &LogHandler{next: next, limiter: &limiter{
		total: rate.NewLimiter(rate.Every(totalEvery), totalBurst), messages: map[key]*message{},
	}}
}

// Enabled reports what the next handler reports.
func (h *LogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle passes a record on, or holds it. A held record has reserved its place in both rates.
func (h *LogHandler) Handle(ctx context.Context, r slog.Record) error {
	l, now := h.limiter, time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	m := l.message(now, key{r.Level, h.logger, r.Message, cause(&r)})
	if m.held != nil {
		m.suppressed++
	} else {
		wait := max(m.rate.ReserveN(now, 1).DelayFrom(now), l.total.ReserveN(now, 1).DelayFrom(now))
		if wait == 0 {
			return h.next.Handle(ctx, r)
		}
		time.AfterFunc(wait, func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			m.pass()
		})
	}
	r = r.Clone()
	m.held, m.to = &r, h.next
	return nil
}

// cause joins the attributes that distinguish events with the same text, so that a
// rare event is not suppressed along with frequent ones. maxMessages bounds the number
// of such events, whatever the values.
func cause(r *slog.Record) (text string) {
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "type", "state", "reason", "property":
			text += a.Value.String() + "\n"
		}
		return true
	})
	return text
}

// WithAttrs returns the handler of a logger with attributes.
func (h *LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &LogHandler{next: h.next.WithAttrs(attrs), logger: fmt.Sprint(h.logger, attrs), limiter: h.limiter}
}

// WithGroup returns the handler of a logger with a group.
func (h *LogHandler) WithGroup(name string) slog.Handler {
	return &LogHandler{next: h.next.WithGroup(name), logger: h.logger + name + ".", limiter: h.limiter}
}

// Flush passes on all held records, in the order of their times.
func (h *LogHandler) Flush() {
	h.limiter.mu.Lock()
	defer h.limiter.mu.Unlock()
	messages := slices.Collect(maps.Values(h.limiter.messages))
	held := slices.DeleteFunc(messages, func(m *message) bool { return m.held == nil })
	slices.SortFunc(held, func(a, b *message) int { return a.held.Time.Compare(b.held.Time) })
	for _, m := range held {
		m.pass()
	}
}

// pass passes the held record on, if there is one.
func (m *message) pass() {
	if m.held == nil {
		return
	}
	if m.suppressed > 0 {
		m.held.Add("suppressed", m.suppressed)
	}
	_ = m.to.Handle(context.Background(), *m.held) // the log is where an error would be reported
	m.held, m.suppressed = nil, 0
}

// message returns the entry of k, a new one if needed. When there is no room, it
// forgets the messages whose whole burst is available again. If that makes no room, it
// returns the entry that all further messages of the level share.
func (l *limiter) message(now time.Time, k key) *message {
	if m := l.messages[k]; m != nil {
		return m
	}
	if len(l.messages) >= maxMessages {
		maps.DeleteFunc(l.messages, func(_ key, m *message) bool {
			return m.held == nil && m.rate.TokensAt(now) >= messageBurst
		})
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
