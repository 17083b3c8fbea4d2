package process

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// queueLen is how many lines wait: enough for several resets of several
	// interfaces, in less than a megabyte.
	queueLen = 1024
	// closeTime is how long Close waits for a reader.
	closeTime = time.Second
)

// LogWriter passes lines on to a writer that may block.
type LogWriter struct {
	out   io.Writer
	log   *slog.Logger  // writes to out
	lines chan []byte   // nil ends it
	lost  atomic.Uint64 // not reported yet
	done  chan struct{} // closed when the goroutine has ended
}

// NewLogWriter begins to write to out; format makes the handler of the line that
// reports lost ones. The caller closes the LogWriter.
func NewLogWriter(out io.Writer, format func(io.Writer) slog.Handler) *LogWriter {
	w := &LogWriter{out: out, log: slog.New(format(out)), lines: make(chan []byte, queueLen), done: make(chan struct{})}
	go w.run()
	return w
}

// Write queues a copy of line, or loses it. It never blocks and never fails.
func (w *LogWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- append([]byte{}, line...):
	default:
		w.lost.Add(1)
	}
	return len(line), nil
}

// Close writes the queued lines, for at most closeTime, and abandons a write that
// hangs. Lines written later are lost.
func (w *LogWriter) Close() error {
	late := time.After(closeTime)
	select {
	case w.lines <- nil:
		select {
		case <-w.done:
		case <-late:
		}
	case <-late:
	}
	return nil
}

func (w *LogWriter) run() {
	defer close(w.done)
	for line := <-w.lines; line != nil; line = <-w.lines {
		_, _ = w.out.Write(line) // there is nowhere to report an error
		if n := w.lost.Swap(0); n > 0 {
			w.log.Warn("log lines were lost because the reader of the log was too slow", "lines", n)
		}
	}
}
