package process

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// output collects what is logged, including what a timer logs.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// logged returns the lines of write that pass the limits, including those that a final
// flush releases.
func logged(t *testing.T, write func(log *slog.Logger, out *output)) []string {
	t.Helper()
	var out output
	synctest.Test(t, func(*testing.T) {
		h := LimitLog(text(&out))
		write(slog.New(h), &out)
		h.Flush()
		synctest.Wait()
	})
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

func find(lines []string, part string) (found []string) {
	for _, l := range lines {
		if strings.Contains(l, part) {
			found = append(found, l)
		}
	}
	return found
}

// A link that flaps 857 times a second for 5 s logs 8,572 lines without limits. With
// them, ten lines of each message pass at once, then two a second, and the last line,
// which has the final state of the link.
func TestFlappingIsBounded(t *testing.T) {
	lines := logged(t, func(log *slog.Logger, _ *output) {
		for i := range 4286 {
			log.Info("interface is up", "i", i)
			log.Info("interface is down", "i", i)
			time.Sleep(5 * time.Second / 4286)
		}
	})
	for _, message := range []string{"is up", "is down"} {
		got := find(lines, message)
		if len(got) < 20 || len(got) > 21 {
			t.Errorf("%d lines of %q, want 10, and 2 in each of 5 s", len(got), message)
		}
		if last := got[len(got)-1]; !strings.Contains(last, "i=4285") {
			t.Errorf("the last of %q is lost; its last line is: %s", message, last)
		}
		if total := len(got) + sum(t, got); total != 4286 {
			t.Errorf("%d lines of %q are accounted for, want 4286", total, message)
		}
	}
}

// sum returns how many suppressed lines the lines report.
func sum(t *testing.T, lines []string) (total int) {
	t.Helper()
	for _, l := range lines {
		if _, n, ok := strings.Cut(l, "suppressed="); ok {
			var suppressed int
			if _, err := fmt.Sscan(n, &suppressed); err != nil {
				t.Error(err)
			}
			total += suppressed
		}
	}
	return total
}

// A flood of one message does not delay another message, or the same message at another
// level or of another interface.
func TestFloodHidesNoOtherMessage(t *testing.T) {
	logged(t, func(log *slog.Logger, out *output) {
		flooding := log.With("interface", "ib0")
		for range 1000 {
			flooding.Info("carrier off")
		}
		for _, write := range []func(){
			func() { flooding.Info("something else") },
			func() { flooding.Error("carrier off") },
			func() { flooding.Info("carrier off", "n", 1, "reason", "another") },
			func() { flooding.Info("carrier off", "reason", "a third", "n", 1) },
			func() { flooding.Info("carrier off", "property", "MAC") },
			func() { log.With("interface", "ib1").Info("carrier off") },
			func() { flooding.WithGroup("g").Info("carrier off", "a", 1) },
		} {
			before := strings.Count(out.String(), "\n")
			write()
			if after := strings.Count(out.String(), "\n"); after != before+1 {
				t.Errorf("%d lines before, %d after, want one more", before, after)
			}
		}
	})
}

// The last line of a burst appears within half a second, even if nothing more is logged,
// with the time at which it was written.
func TestLastLineOfABurstAppears(t *testing.T) {
	logged(t, func(log *slog.Logger, out *output) {
		for i := range messageBurst {
			log.Error("device failed", "i", i)
		}
		log.Error("device failed", "i", "replaced")
		written := time.Now().Format("2006-01-02T15:04:05.000")
		log.Error("device failed", "i", "last")
		if strings.Contains(out.String(), "last") {
			t.Error("the last line was not held back")
		}
		time.Sleep(messageEvery)
		synctest.Wait()
		last := find(strings.Split(out.String(), "\n"), "i=last suppressed=1")
		if len(last) != 1 || !strings.Contains(last[0], written) || strings.Contains(out.String(), "replaced") {
			t.Errorf("want the last line, of %s, got:\n%s", written, out)
		}
	})
}

// A flood of different messages, which an attacker can cause who controls part of their
// text, is bounded in lines and in memory. An error in the middle of it still appears.
func TestFloodOfDifferentMessagesIsBounded(t *testing.T) {
	const seconds, perSecond = 4, 2000
	var grown int64
	lines := logged(t, func(log *slog.Logger, _ *output) {
		before := heap()
		for i := range seconds * perSecond {
			log.Info(fmt.Sprintf("message %d of %s", i, strings.Repeat("x", 1000)))
			if i == seconds*perSecond/2 {
				log.Error("device failed")
			}
			time.Sleep(time.Second / perSecond)
		}
		grown = heap() - before
	})
	// Flush adds what is held.
	if most := totalBurst + seconds*int(time.Second/totalEvery) + maxMessages + 1; len(lines) > most {
		t.Errorf("%d lines, want at most %d", len(lines), most)
	}
	if got := find(lines, "device failed"); len(got) != 1 {
		t.Errorf("the error appears %d times", len(got))
	}
	t.Logf("%d lines of %d, the heap grew by %d bytes", len(lines), seconds*perSecond+1, grown)
	if grown > 20<<20 { // about 1,500 lines of 1,100 bytes pass, into a buffer that doubles
		t.Errorf("the heap grew by %d bytes", grown)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// The table of messages is bounded even while every entry holds a line.
func TestTableOfMessagesIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := LimitLog(text(io.Discard))
		log := slog.New(h)
		for i := range 10 * maxMessages {
			for range messageBurst + 1 {
				log.Info(fmt.Sprint(i))
			}
		}
		if n := len(h.limiter.messages); n != maxMessages+1 {
			t.Errorf("%d messages while all are held, want %d and the shared one", n, maxMessages)
		}
		for k, m := range h.limiter.messages {
			if m.held == nil {
				t.Errorf("message %s holds no line", k.text)
			}
		}
		h.Flush()
		time.Sleep(time.Hour)
		log.Info("later")
		if n := len(h.limiter.messages); n != 1 {
			t.Errorf("%d messages after an hour of silence, want 1", n)
		}
	})
}

// When the total limit applies, messages of equal rates get equal shares.
func TestTotalLimitIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out output
		log := slog.New(LimitLog(text(&out)))
		for range 4 * 1000 {
			for i := range 100 {
				log.Info(fmt.Sprintf("<%d>", i))
			}
			time.Sleep(time.Millisecond)
		}
		for i := range 100 { // 4 s of 50 lines, and the burst
			if n := strings.Count(out.String(), fmt.Sprintf("<%d>", i)); n < 3 || n > 5 {
				t.Errorf("message %d: %d lines, want about 4", i, n)
			}
		}
	})
}
