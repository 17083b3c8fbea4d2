package logline

import (
	"io"
	"log/slog"
	"sync/atomic"
	"time"
)

const (
	// queueLen is how many lines wait: those of several resets of several
	// interfaces, in less than a megabyte.
	queueLen = 1024
	// closeTime is how long Close waits for a reader.
	closeTime = time.Second
)

// Writer passes lines on to a writer that may block.
type Writer struct {
	out   io.Writer
	told  *slog.Logger // writes to out
	lines chan []byte
	lost  atomic.Uint64 // not told of yet
	stop  chan struct{} // closed by Close
	done  chan struct{} // closed when the goroutine has ended
}

// New begins to write to out; format makes the handler of the line that tells of
// lost ones. The caller closes the Writer.
func New(out io.Writer, format func(io.Writer) slog.Handler) *Writer {
	w := &Writer{
		out: out, told: slog.New(format(out)),
		lines: make(chan []byte, queueLen), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write queues a copy of line, or loses it. It never blocks and never fails.
func (w *Writer) Write(line []byte) (int, error) {
	select {
	case w.lines <- append([]byte(nil), line...):
	default:
		w.lost.Add(1)
	}
	return len(line), nil
}

// Close writes what is queued, for at most closeTime, and leaves a write that
// hangs behind. What is written afterwards is lost.
func (w *Writer) Close() error {
	close(w.stop)
	select {
	case <-w.done:
	case <-time.After(closeTime):
	}
	return nil
}

func (w *Writer) run() {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.pass(line)
		case <-w.stop:
			w.flush()
			return
		}
	}
}

// flush writes what was queued before Close.
func (w *Writer) flush() {
	for range len(w.lines) {
		w.pass(<-w.lines)
	}
}

// pass writes a line; that the reader is gone is nobody's concern.
func (w *Writer) pass(line []byte) {
	_, _ = w.out.Write(line)
	if n := w.lost.Swap(0); n > 0 {
		w.told.Warn("lines of the log were lost: nobody read them", "lines", n)
	}
}
