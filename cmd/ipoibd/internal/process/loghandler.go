package process

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// LogHandler passes records on to another handler, within the limits of the log. A
// record that had to wait keeps its own time, so it may be written after later ones;
// its attribute "suppressed" counts the records of its message that were dropped while
// it waited.
type LogHandler struct {
	next   slog.Handler
	logger string // attributes and groups; loggers that differ in them do not share messages
	gate   *gate
}

// gate is what a LogHandler shares with those derived from it.
type gate struct {
	mu    sync.Mutex
	lines limiter
	timer *time.Timer // fires when a held line may pass
}

// LimitLog returns a handler that passes records on to next, which must not block.
// The caller calls Flush at the end.
func LimitLog(next slog.Handler) *LogHandler {
	g := &gate{lines: newLimiter()}
	g.timer = time.AfterFunc(time.Hour, func() { g.pass(false) })
	g.timer.Stop()
	return &LogHandler{next: next, gate: g}
}

// Enabled reports what the next handler reports.
func (h *LogHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// Handle passes a record on, or holds it.
func (h *LogHandler) Handle(ctx context.Context, r slog.Record) error {
	g := h.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	if now := time.Now(); !g.lines.add(now, key{r.Level, h.logger, r.Message, cause(&r)}, line{r.Clone(), h.next}) {
		g.arm(now)
		return nil
	}
	return h.next.Handle(ctx, r)
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
	return &LogHandler{next: h.next.WithAttrs(attrs), logger: fmt.Sprint(h.logger, attrs), gate: h.gate}
}

// WithGroup returns the handler of a logger with a group.
func (h *LogHandler) WithGroup(name string) slog.Handler {
	return &LogHandler{next: h.next.WithGroup(name), logger: h.logger + name + ".", gate: h.gate}
}

// Flush passes on all held records.
func (h *LogHandler) Flush() { h.gate.pass(true) }

// pass passes on the held lines that are due, or all of them.
func (g *gate) pass(all bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	g.lines.due(now, all, func(ln line, suppressed uint64) {
		if suppressed > 0 {
			ln.record.Add("suppressed", suppressed)
		}
		_ = ln.to.Handle(context.Background(), ln.record) // the log is where an error would be reported
	})
	g.arm(now)
}

// arm sets the timer to when the next held line may pass.
func (g *gate) arm(now time.Time) {
	if at, ok := g.lines.next(); ok {
		g.timer.Reset(at.Sub(now))
	}
}
