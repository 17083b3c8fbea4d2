package process

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// stalled is a reader of the log that stalls until goOn is closed.
type stalled struct {
	goOn chan struct{}
	got  bytes.Buffer
}

func (s *stalled) Write(p []byte) (int, error) {
	<-s.goOn
	return s.got.Write(p)
}

func text(w io.Writer) slog.Handler { return slog.NewTextHandler(w, nil) }

func write(t *testing.T, w io.Writer, lines int) {
	t.Helper()
	for i := range lines {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
}

// Writing a line never waits for a reader that stalls. Queued lines are not lost, and
// the number of lost lines is logged once.
func TestR17LogNeverBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stalled{goOn: make(chan struct{})}
		w := NewLogWriter(reader, text)
		write(t, w, 1)
		synctest.Wait() // the reader stalls in the first line
		began := time.Now()
		write(t, w, queueLen+7)
		if waited := time.Since(began); waited != 0 {
			t.Errorf("waited %s", waited)
		}
		close(reader.goOn)
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		got := reader.got.String()
		if n := strings.Count(got, "\n"); n != 1+queueLen+1 {
			t.Errorf("%d lines, want %d and one that reports the lost ones", n, 1+queueLen)
		}
		if n := strings.Count(got, "lines=7\n"); n != 1 {
			t.Errorf("the seven lost lines are reported %d times, want once", n)
		}
	})
}

// Close abandons a write that hangs.
func TestR17CloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader := &stalled{goOn: make(chan struct{})}
		w := NewLogWriter(reader, text)
		write(t, w, 3)
		began := time.Now()
		if err := w.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != closeTime {
			t.Errorf("took %s, want %s", took, closeTime)
		}
		close(reader.goOn)
		<-w.done
	})
}
