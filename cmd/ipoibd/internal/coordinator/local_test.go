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

// A client of this process that does not let go is reset over; what it says
// later is of no interest.
func TestR14NotReadyWithinTheGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verb{}
		c := join(t, Config{Name: "ib0", Grace: 7 * time.Second, Reset: v.reset})
		defer c.Close()
		begin := time.Now()
		c.Request()
		id := next[Pending](t, c, soon).ID
		if end := next[Ended](t, c, time.Minute); end.Outcome != reset.OutcomeDone {
			t.Error(end)
		}
		if took := time.Since(begin); took != 7*time.Second {
			t.Errorf("took %v", took)
		}
		if len(v.calls) != 1 || len(v.calls[0]) != 1 || v.calls[0][0].Name != "ib0" {
			t.Errorf("without %+v", v.calls)
		}
		c.Released(id)
		quiet(t, c)
	})
}

// quiet fails if there is an event within an hour.
func quiet(t *testing.T, c *Coordinator) {
	t.Helper()
	select {
	case ev := <-c.Events():
		t.Errorf("%#v", ev)
	case <-time.After(time.Hour):
	}
}

func TestR15RequestsWhilePendingAreOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := &verb{takes: time.Second}
		c := join(t, Config{Reset: v.reset})
		defer c.Close()
		for range 3 {
			c.Request()
		}
		id := next[Pending](t, c, soon).ID
		c.Request()
		synctest.Wait()
		c.Released(id)
		time.Sleep(v.takes / 2)
		c.Request()
		next[Ended](t, c, time.Minute)
		quiet(t, c)
		if len(v.calls) != 1 {
			t.Errorf("%d resets", len(v.calls))
		}
	})
}

// A reset of the device that hangs is given up; the next one fails while it
// still hangs, and once it has returned all is well again.
func TestR06ResetThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang, calls, canceled := make(chan struct{}), 0, false
		c := join(t, Config{Limit: 3 * time.Second, Reset: func(ctx context.Context, _ []reset.Member) error {
			calls++
			<-hang
			canceled = ctx.Err() != nil
			return nil
		}})
		defer c.Close()
		for _, want := range []reset.Outcome{reset.OutcomeTimeout, reset.OutcomeFailed} {
			if got := resetOnce(t, c); got != want {
				t.Errorf("%v, want %v", got, want)
			}
		}
		close(hang)
		synctest.Wait()
		if calls != 1 || !canceled {
			t.Errorf("called %d times, canceled %v", calls, canceled)
		}
		if got := resetOnce(t, c); got != reset.OutcomeDone {
			t.Error(got)
		}
	})
}

// resetOnce makes one reset and returns how it ended.
func resetOnce(t *testing.T, c *Coordinator) reset.Outcome {
	t.Helper()
	c.Request()
	c.Released(next[Pending](t, c, soon).ID)
	return next[Ended](t, c, time.Hour).Outcome
}

// Events that nobody reads wait, in their order.
func TestR11EventsAreNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := join(t, Config{Grace: time.Second, Reset: (&verb{}).reset})
		defer c.Close()
		const resets = 50
		for range resets {
			c.Request()
			time.Sleep(2 * time.Second)
		}
		for range resets {
			if id := next[Pending](t, c, soon).ID; next[Ended](t, c, soon).Reset != id {
				t.Error("another reset's end")
			}
		}
	})
}

func TestR11StatusFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := join(t, Config{Reset: (&verb{takes: time.Second}).reset})
		defer c.Close()
		phase := func(want reset.Phase, id reset.ID) {
			t.Helper()
			synctest.Wait()
			if s := c.Status(); s.Phase != want || s.Reset != id || !s.Hosting || !s.Up {
				t.Errorf("%+v, want %v of %d", s, want, id)
			}
		}
		phase(reset.PhaseIdle, 0)
		c.Request()
		id := next[Pending](t, c, soon).ID
		phase(reset.PhasePending, id)
		c.Released(id)
		phase(reset.PhaseResetting, id)
		next[Ended](t, c, time.Minute)
		phase(reset.PhaseIdle, 0)
		if last := c.Status().Last; last.Reset != id || last.Outcome != reset.OutcomeDone {
			t.Errorf("%+v", last)
		}
	})
}

// Close ends everything in any phase; the bubble ends with no goroutine left.
func TestR11CloseInAnyPhase(t *testing.T) {
	for phase := reset.PhaseIdle; phase <= reset.PhaseResetting; phase++ {
		t.Run(phase.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := join(t, Config{Reset: (&verb{takes: time.Hour}).reset})
				if phase >= reset.PhasePending {
					c.Request()
					id := next[Pending](t, c, soon).ID
					if phase == reset.PhaseResetting {
						c.Released(id)
					}
				}
				synctest.Wait()
				if now := c.Status().Phase; now != phase {
					t.Error(now)
				}
				c.Close()
				c.Close()
				c.Request()
				c.Released(1)
				if ev, open := <-c.Events(); open {
					t.Errorf("%#v", ev)
				}
			})
		})
	}
}
