package handover

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/link/kernel/capsule"
)

// recorded is a Live that records its calls, and fails in one of them.
type recorded struct {
	calls []string
	fails string
}

func (r *recorded) call(name string) error {
	r.calls = append(r.calls, name)
	if name == r.fails {
		return errors.New(name + " fails")
	}
	return nil
}

func (r *recorded) Settle(context.Context) error { return r.call("settle") }

func (r *recorded) Park(context.Context) (time.Time, error) {
	return time.Now().Add(10 * time.Second), r.call("park")
}

func (r *recorded) Export(w *capsule.Writer) error {
	w.Put("part", 7)
	return r.call("export")
}

func (r *recorded) Resume() { _ = r.call("resume") }
func (r *recorded) Leave()  { _ = r.call("leave") }

// What is parked is either left or resumed. Only a failure for which traffic has stopped delays the next hand-over, and
// only until a pause has passed.
func TestHost(t *testing.T) {
	for fails, want := range map[string]struct {
		calls  string
		paused bool
	}{
		"":       {"settle park export leave", false},
		"settle": {"settle", false},
		"park":   {"settle park resume", true},
		"export": {"settle park export resume", true},
		"build":  {"settle park export resume", true},
	} {
		giver, taker := pairOf(t)
		r, log := &recorded{fails: fails}, journal.New()
		h := &Host{Journal: log, Log: slog.New(slog.DiscardHandler)}
		took := make(chan error, 1)
		var got, discarded int
		go func() {
			took <- TakeOver(t.Context(), func(context.Context) (*net.UnixConn, error) { return taker, nil },
				func(c *capsule.Reader) error {
					if fails == "build" {
						return errors.New("build fails")
					}
					return c.Value("part", &got)
				}, func() error { discarded++; return nil })
		}()
		given, err := h.HandOver(t.Context(), r, func() (*net.UnixConn, error) { return giver, nil })
		if err != nil || given != (fails == "") || !slices.Equal(r.calls, strings.Fields(want.calls)) {
			t.Errorf("%s fails: %v, given: %t, %v", fails, r.calls, given, err)
		}
		err = <-took
		switch {
		case fails == "":
			if err != nil || got != 7 {
				t.Errorf("the taker has %d, %v", got, err)
			}
		case err == nil || !strings.Contains(err.Error(), fails+" fails; if that persists, stop the running daemon"):
			t.Errorf("%s fails: the taker has %v", fails, err)
		}
		if want := fails == "build"; (discarded > 0) != want {
			t.Errorf("%s fails: discarded %d times", fails, discarded)
		}
		if noted := len(log.Since(0)) > 0; noted == given {
			t.Errorf("%s fails: noted: %t", fails, noted)
		}
		if want.paused {
			<-h.failed.Done()
		}
		if err := h.Ready(time.Now()); (err != nil) != want.paused {
			t.Errorf("%s fails: next one: %v", fails, err)
		}
		if err := h.Ready(time.Now().Add(givePause)); err != nil {
			t.Errorf("%s fails: after the pause: %v", fails, err)
		}
	}
}

// While a taker does not know that it failed, there is no other hand-over.
func TestHostWaitsForTheTakerThatFailed(t *testing.T) {
	g := &Giver{PID: 7, done: make(chan struct{})}
	h, later := &Host{failed: g}, time.Now().Add(time.Hour)
	if err := h.Ready(later); err == nil || !strings.Contains(err.Error(), "process 7 has not noticed yet") {
		t.Error(err)
	}
	close(g.done)
	if err := h.Ready(later); err != nil {
		t.Error(err)
	}
}

// An error of the connection is returned; a daemon that ends just then is asked again, a bounded number of times.
func TestTakeOverOfNothing(t *testing.T) {
	none := errors.New("none")
	err := TakeOver(t.Context(), func(context.Context) (*net.UnixConn, error) { return nil, none }, nil, nil)
	if !errors.Is(err, none) {
		t.Error(err)
	}
	tries := 0
	gone := func(context.Context) (*net.UnixConn, error) { tries++; return nil, ErrGone }
	if err := TakeOver(t.Context(), gone, nil, nil); !errors.Is(err, ErrGone) || tries != goneTries {
		t.Errorf("%d tries, %v", tries, err)
	}
}
