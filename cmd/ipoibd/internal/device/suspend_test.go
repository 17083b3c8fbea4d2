package device

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// stillWorks reports whether a session is not in error state.
func stillWorks(s *Session) bool {
	_, err := s.QueryPort(1)
	return err == nil
}

// The users end their use of a device that works, then it is closed, and only then Suspend
// returns. No timer runs while it is suspended. When it is resumed, it is opened at once.
func TestR26Suspend(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		b.newUser(time.Second)
		s := b.View().Session
		s.Acquire("user")
		ended := make(chan error, 1)
		go func() { ended <- b.Suspend(b.t.Context()) }()
		time.Sleep(2 * time.Second)
		if !errors.Is(b.View().Err, ErrSuspended) || !stillWorks(s) {
			t.Errorf("%+v, works: %v", b.View(), stillWorks(s))
		}
		if len(ended) > 0 {
			t.Error("suspended while it is in use")
		}
		s.Release("user")
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if _, err := s.QueryPort(1); !errors.Is(err, hca.ErrClosed) {
			t.Errorf("not closed: %v", err)
		}
		for what, order := range map[string]func(context.Context) error{"reset": b.Reset, "recover": b.Recover} {
			if err := order(b.t.Context()); !errors.Is(err, ErrSuspended) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if err := b.Suspend(b.t.Context()); err != nil {
			t.Errorf("again: %v", err)
		}
		time.Sleep(24 * time.Hour)
		if st := b.Status(); st.State != qprecovery.DeviceSuspended || !st.Suspended || b.slot.did().opens != 1 || b.slot.did().resets != 0 {
			t.Errorf("%+v", st)
		}
		if err := b.Resume(b.t.Context()); err != nil {
			t.Error(err)
		}
		if next := b.healthy(soon); next.Instance != 2 {
			t.Errorf("instance %d", next.Instance)
		}
		b.wantSteps(rung(qprecovery.RungSuspend, qprecovery.ReasonSuspended))
	})
}

// Suspend is bounded by its context, and by the grace period if a user does not release the
// session: such a device is closed by force, and reset before it is opened again.
func TestR26SilentUser(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		s := b.View().Session
		s.Acquire("user")
		pd, err := s.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(b.t.Context(), 5*time.Second)
		defer cancel()
		if err := b.Suspend(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		begin := time.Now()
		if err := b.Suspend(b.t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); took > qprecovery.DefaultGrace {
			t.Errorf("took %s", took)
		}
		if stillWorks(s) {
			t.Error("no zombie")
		}
		if err := b.Resume(b.t.Context()); err != nil {
			t.Error(err)
		}
		b.healthy(soon)
		if b.slot.did().resets != 1 {
			t.Errorf("%d resets", b.slot.did().resets)
		}
		if err := pd.Close(); err != nil {
			t.Error(err)
		}
		s.Release("user")
	})
}

// A device that is resumed before it is closed is closed and opened again nevertheless, and
// Suspend returns an error.
func TestR26ResumedMeanwhile(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		u := b.newUser(time.Second)
		ended := make(chan error, 1)
		go func() { ended <- b.Suspend(b.t.Context()) }()
		synctest.Wait()
		if err := b.Resume(b.t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-ended; !errors.Is(err, ErrResumed) {
			t.Error(err)
		}
		b.healthy(time.Second + soon)
		synctest.Wait()
		if len(u.seen) != 2 {
			t.Errorf("the user saw %v", u.seen)
		}
	})
}

// A device that is removed while the system sleeps is waited for afterwards.
func TestR27GoneDuringSleep(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		u := b.newUser(0)
		if err := b.Suspend(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		b.slot.unplug()
		time.Sleep(24 * time.Hour)
		if err := b.Resume(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if v := b.View(); v.Session != nil || v.GaveUp {
			t.Errorf("%+v", v)
		}
		b.slot.plug(guidSame)
		next := b.healthy(soon)
		synctest.Wait()
		if u.held != next {
			t.Error("the user does not go on")
		}
	})
}

// After a device has vanished without warning all its verbs fail, and service resumes when it
// returns.
func TestR27Vanishes(t *testing.T) {
	bubble(t, nil, func(b *bench) {
		u := b.newUser(0)
		s := b.View().Session
		b.slot.unplug()
		var f *guard.Failure
		synctest.Wait()
		if _, err := s.AllocPD(); !errors.As(err, &f) || u.held != nil {
			t.Errorf("AllocPD: %v", err)
		}
		time.Sleep(5 * time.Minute)
		b.slot.plug(guidSame)
		b.healthy(soon)
		synctest.Wait()
		if len(u.seen) != 2 {
			t.Errorf("the user saw %v", u.seen)
		}
	})
}

// Before the device was open once, commands are answered at once: there is nothing to reset,
// and a suspended device is not tried, not even when it arrives.
func TestR26SuspendedBeforeItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.slot.set(func() { b.slot.guid = hca.GUID{} })
		b.run()
		defer b.stop()
		synctest.Wait()
		if err := b.Reset(t.Context()); !errors.Is(err, ErrNotOpen) {
			t.Errorf("reset: %v", err)
		}
		if err := b.Recover(t.Context()); err != nil {
			t.Errorf("recover: %v", err)
		}
		synctest.Wait()
		if err := b.Suspend(t.Context()); err != nil {
			t.Errorf("suspend: %v", err)
		}
		tries := b.slot.did().opens
		b.slot.plug(guidSame)
		time.Sleep(time.Hour)
		if n := b.slot.did().opens; n != tries || tries < 2 || !b.Status().Suspended || !errors.Is(b.View().Err, ErrSuspended) {
			t.Errorf("%d tries, then %d: %+v, %v", tries, n, b.Status(), b.View().Err)
		}
		if err := b.Reset(t.Context()); !errors.Is(err, ErrSuspended) {
			t.Errorf("reset while suspended: %v", err)
		}
		if err := b.Resume(t.Context()); err != nil {
			t.Errorf("resume: %v", err)
		}
		b.healthy(soon)
	})
}

// A device that is suspended during its first opening is closed before Suspend returns,
// whatever the result of the opening.
func TestR26SuspendedWhileItOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, nil)
		b.slot.set(func() { b.slot.slow = time.Second })
		b.run()
		defer b.stop()
		synctest.Wait()
		start := time.Now()
		if err := b.Suspend(t.Context()); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < time.Second || b.slot.did().opens != 1 {
			t.Errorf("suspended after %v, opened %d times", took, b.slot.did().opens)
		}
		if v := b.View(); v.Session != nil || !errors.Is(v.Err, ErrSuspended) {
			t.Errorf("%+v", v)
		}
		if err := b.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		b.healthy(time.Second + soon)
	})
}

// An opening that waits ends when the device is suspended.
func TestR26SuspendEndsTheFirstOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, func(c *Config) { c.Open = neverOpens })
		b.run()
		defer b.stop()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Suspend(ctx); err != nil {
			t.Error(err)
		}
		if err := b.Resume(ctx); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if s := b.Status(); s.Suspended {
			t.Errorf("%+v", s)
		}
	})
}

// A device that is resumed while its opening is being cancelled for a suspension is tried
// again at once. The cancelling is not reported as a reason.
func TestR26ResumedWhileTheFirstOpeningEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const takes = 5 * time.Second
		defer time.Sleep(takes) // the stop does not wait for the last opening
		var begins []time.Time
		b := newBench(t, func(c *Config) {
			c.Open = func(ctx context.Context) (hca.Device, error) {
				begins = append(begins, time.Now())
				<-ctx.Done()
				time.Sleep(takes)
				return nil, ctx.Err()
			}
		})
		b.run()
		defer b.stop()
		synctest.Wait()
		suspended := make(chan error, 1)
		go func() { suspended <- b.Suspend(t.Context()) }()
		synctest.Wait()
		if err := b.Resume(t.Context()); err != nil {
			t.Error(err)
		}
		if err := <-suspended; !errors.Is(err, ErrResumed) {
			t.Errorf("suspend: %v", err)
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if len(begins) != 2 || begins[1].Sub(begins[0]) != takes || !errors.Is(b.View().Err, ErrNotOpen) {
			t.Errorf("tried at %v: %v", begins, b.View().Err)
		}
	})
}
