package device

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/qprecovery"
)

// A device that is suspended, waits or is given up is handed over as it is; one that is being reset is not
// (R26).
func TestR26HandedOverAsItIs(t *testing.T) {
	next := func(b *bench, h qprecovery.HandedDevice) *Device {
		cfg := b.cfg
		d := New(cfg)
		d.Inherit(h)
		return d
	}
	bubble(t, nil, func(b *bench) {
		s := b.healthy(soon)
		s.Acquire("user")
		if err := b.Reset(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := b.CanPark(b.t.Context()); !errors.Is(err, ErrUnsettled) {
			t.Errorf("asked during a reset: %v", err)
		}
		s.Release("user")
		b.healthy(soon)
		if err := b.CanPark(b.t.Context()); err != nil {
			t.Errorf("asked after it: %v", err)
		}
		if err := b.Suspend(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		p, err := b.Park(b.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer p.Release()
		heir := next(b, p.Ladder)
		suspended := func(when string) {
			t.Helper()
			if s, v := heir.Status(), heir.View(); s.State != qprecovery.DeviceSuspended || !errors.Is(v.Err, ErrSuspended) {
				t.Errorf("%s: %+v, %+v", when, s, v)
			}
		}
		suspended("before Run") // its users and the operator look at it at once
		var run sync.WaitGroup
		ctx, end := context.WithCancel(b.t.Context())
		defer run.Wait()
		defer end()
		run.Go(func() { heir.Run(ctx) })
		time.Sleep(time.Hour)
		if suspended("after an hour"); heir.Opens() != 0 {
			t.Errorf("%d opens", heir.Opens())
		}
		if err := heir.Resume(b.t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if heir.View().Session == nil {
			t.Errorf("after Resume: %+v", heir.View())
		}
	})
}
