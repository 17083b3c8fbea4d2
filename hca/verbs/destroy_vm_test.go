//go:build vm && cgo && linux

package verbs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/hcatest/station"
	"ipoibd/hca/verbs/verbstest"
)

// Objects are destroyed while goroutines keep using them, many times. Every user gets
// ErrClosed, and nothing hangs, crashes or is used afterwards.
func TestDestroyObjectsInUse(t *testing.T) {
	const rounds, each = 20, 50 * time.Millisecond
	for range rounds {
		t.Run("round", func(t *testing.T) {
			var users sync.WaitGroup
			s := newStation(t, verbstest.EnvA)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			for _, use := range uses(ctx, s) {
				users.Go(func() { untilClosed(s, use) })
			}
			time.Sleep(each)
			s.Must(s.QP.Close(), "close QP")
			s.Must(s.Send.Close(), "close send CQ")
			s.Must(s.Recv.Close(), "close receive CQ")
			cancel()
			users.Wait()
		})
	}
}

// uses returns functions that use the objects of a station, to be run concurrently.
func uses(ctx context.Context, s *station.Station) []func() error {
	sends, recvs := s.Towards(s, 8, 100), s.Receives(8)
	return []func() error{
		func() error { _, err := s.QP.PostSend(sends); return err },
		func() error { _, err := s.QP.PostRecv(recvs); return err },
		func() error { _, err := s.QP.Query(); return err },
		func() error { return modify(s.QP) },
		func() error { return consume(s.Send) },
		func() error { return consume(s.Recv) },
		func() error { s.Send.Wake(); s.Recv.Wake(); return ended(ctx) },
		func() error { _, err := s.Dev.NextEvent(ctx); return err },
		func() error { _, err := s.Dev.QueryPort(1); return errors.Join(err, ended(ctx)) },
		func() error { return makeCQ(ctx, s.Dev) },
	}
}

// modify moves a QP from RTS to RTS. It ignores the error if the QP is in ERR because
// its CQ overran, which may happen as nothing here waits for completions.
func modify(q hca.QP) error {
	err := q.Modify(hca.QPAttr{State: hca.QPRTS}, hca.AttrState)
	if errors.Is(err, hca.ErrInvalid) {
		return nil
	}
	return err
}

// consume uses a CQ as the one goroutine that owns it does.
func consume(c hca.CQ) error {
	if err := c.Arm(); err != nil {
		return err
	}
	if _, err := c.Poll(make([]hca.WC, 4)); err != nil {
		return err
	}
	return c.Wait(time.Time{})
}

func makeCQ(ctx context.Context, dev hca.Device) error {
	c, err := dev.CreateCQ(hca.CQSpec{Entries: 4})
	if err != nil {
		return err
	}
	return errors.Join(c.Close(), c.Close(), ended(ctx))
}

func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return hca.ErrClosed
	}
	return nil
}

// untilClosed calls use until it returns ErrClosed. It ignores full queues.
func untilClosed(s *station.Station, use func() error) {
	for {
		switch err := use(); {
		case errors.Is(err, hca.ErrClosed) || errors.Is(err, context.Canceled):
			return
		case err != nil && !errors.Is(err, hca.ErrQueueFull):
			s.Errorf("%v, want ErrClosed in the end", err)
			return
		}
	}
}
