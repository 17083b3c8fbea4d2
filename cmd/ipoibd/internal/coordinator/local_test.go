package coordinator

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery/reset"
)

// join joins without a socket; the test closes it.
func join(t *testing.T, conf Config) *Coordinator {
	t.Helper()
	conf.Device, conf.Log = "soft0", slog.New(slog.DiscardHandler)
	c, err := Join(t.Context(), conf)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// next returns the next event, which is to come within d.
func next[T Event](t *testing.T, c *Coordinator, d time.Duration) T {
	t.Helper()
	var zero T
	select {
	case ev := <-c.Events():
		got, ok := ev.(T)
		if !ok {
			t.Fatalf("got %#v, want %T", ev, zero)
		}
		return got
	case <-time.After(d):
		t.Fatalf("no %T within %v", zero, d)
	}
	return zero
}

// soon is in virtual time: at once.
const soon = time.Millisecond

// verb is a Config.Reset that takes a time and notes its calls.
type verb struct {
	takes time.Duration
	fails error
	calls [][]reset.Member
}

func (v *verb) reset(ctx context.Context, without []reset.Member) error {
	v.calls = append(v.calls, without)
	select {
	case <-time.After(v.takes):
		return v.fails
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestR11AloneResetsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verb{takes: 40 * time.Millisecond}
		c := join(t, Config{Reset: v.reset})
		defer c.Close()
		begin := time.Now()
		c.Request()
		id := next[Pending](t, c, soon).ID
		if len(v.calls) != 0 {
			t.Error("reset before it was ready")
		}
		c.Released(id)
		end := next[Ended](t, c, time.Second)
		if end.Reset != id || end.Outcome != reset.OutcomeDone || len(v.calls) != 1 {
			t.Errorf("%+v after %d resets", end, len(v.calls))
		}
		if took := time.Since(begin); took > v.takes+time.Millisecond {
			t.Errorf("took %v: a reset waits for nobody", took)
		}
	})
}

func TestR11ResetFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verb{fails: errors.New("no answer")}
		c := join(t, Config{Reset: v.reset})
		defer c.Close()
		c.Request()
		c.Released(next[Pending](t, c, soon).ID)
		if end := next[Ended](t, c, time.Second); end.Outcome != reset.OutcomeFailed {
			t.Error(end.Outcome)
		}
	})
}
