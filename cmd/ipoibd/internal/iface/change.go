package iface

import (
	"cmp"
	"context"
	"errors"

	"ipoibd/cmd/ipoibd/internal/config"
)

var errEnded = errors.New("the interface has ended")

// Change applies a configuration that differs only in live fields ([config.Field]), and sets ib0 up if Up is new. It
// returns when the host has them. Any goroutine may call it while Run runs. Errors: why the host refused some of them,
// which is retried as at the start; the error of ctx, after which they may still be set; why the interface has ended.
func (f *Iface) Change(ctx context.Context, cfg config.Interface) error {
	want, err := assignmentOf(cfg)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	if err := f.do(ctx, func() {
		if cfg.MTU != f.cfg.MTU {
			f.host.mtu.configure(cfg.MTU)
			f.fit()
		}
		a, rises := &f.host.assignment, cfg.Up && !f.host.now.Up
		a.want, a.raise, a.rising = want, rises && (!f.cfg.Up || a.raise), rises && (!f.cfg.Up || a.rising)
		f.cfg.Change(&cfg)
		f.host.checkSources()
		f.fabric.host = f.host.side()
		f.host.carryOut(func(err error) { done <- err })
	}); err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-f.done:
		return cmp.Or(f.end, errEnded)
	case <-ctx.Done():
		return ctx.Err()
	}
}
