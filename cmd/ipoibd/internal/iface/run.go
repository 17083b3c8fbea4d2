package iface

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
)

// Run works until ctx ends (nil) or the interface cannot go on. It is called
// once.
func (f *Iface) Run(ctx context.Context) error {
	defer close(f.done)
	f.end = f.run(ctx)
	f.shown.ended = true
	f.show(time.Now())
	return f.end
}

func (f *Iface) run(ctx context.Context) error {
	links, err := f.host.tap.Watch(ctx)
	if err != nil {
		return fmt.Errorf("watch %s: %w", f.cfg.Name, err)
	}
	views, unsubscribe := f.fab.dev.Subscribe()
	defer unsubscribe()
	f.rec.worker.start()
	defer f.wind()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.publish(time.Now())
		due := f.setTimer(timer)
		var now turn
		select { // the channels are named in the order in which they are asked for
		case <-ctx.Done():
			return nil
		case st, ok := <-listen(&now, links):
			if !ok || !st.Present {
				return f.lost(ctx)
			}
			f.hostChanged(st)
			f.reconcile()
		case r := <-listen(&now, f.rec.worker.results):
			f.finished(r)
		case ev := <-listen(&now, f.rec.faults):
			f.fault(ev)
		case <-listen(&now, f.fab.att.pumpsEnded()):
			if f.pumpsEnded() != nil {
				return f.lost(ctx)
			}
		case <-listen(&now, views):
			f.reconcile()
		case <-now.alarm(timer, due):
			f.expire()
		case r := <-last(&now, f.fab.att.ahResults()):
			f.ahResult(r)
		case q := <-last(&now, f.queries):
			q()
		case ev := <-last(&now, f.rec.flushes):
			f.fault(ev)
		case it := <-last(&now, f.path.slow.host.ready):
			f.step(neigh.FromHost{Frame: it.data})
			f.path.slow.host.done(it)
		case it := <-last(&now, f.path.slow.fabric.ready):
			f.step(neigh.FromFabric{Msg: it.data, SrcGID: it.from.GID, SrcQPN: it.from.QPN, Multicast: it.from.Multicast})
			f.path.slow.fabric.done(it)
		}
	}
}

// lost says what became of an interface that is out of sight: its TAP still
// works where it was only moved to a network namespace that may not be entered.
func (f *Iface) lost(ctx context.Context) error {
	f.host.now = link.State{}
	if ctx.Err() != nil {
		return nil
	}
	f.stop("the interface is gone")
	err := f.host.tap.SetCarrier(false)
	switch {
	case err == nil:
		err = ErrMoved
	case errors.Is(err, link.ErrGone):
		err = ErrDeleted
	}
	return fmt.Errorf("%s: %w", f.cfg.Name, err)
}

// wind ends everything: nothing of the device is held afterwards.
func (f *Iface) wind() {
	f.stop("stopping")
	f.rec.stale.end()
	f.rec.badClient.end()
	f.rec.worker.close()
}

// setTimer arms the timer for the next thing to do, and reports whether that is
// due already.
func (f *Iface) setTimer(t *time.Timer) (due bool) {
	now := time.Now()
	next := now.Add(time.Hour)
	for _, at := range []time.Time{f.nbrs.deadline(), f.fab.retry.at, f.healDeadline(now), f.host.custody.at, f.shown.at} {
		next = sooner(at, next)
	}
	t.Reset(next.Sub(now))
	return !next.After(now)
}

func (f *Iface) expire() {
	now := time.Now()
	if f.fab.retry.due(now) {
		f.reconcile()
	}
	if at := f.host.custody.at; !at.IsZero() && !now.Before(at) {
		f.inspect(now)
	}
	f.rec.badClient.expire(now)
	f.rec.stale.expire(now)
	f.revive(now)
	f.look(now)
	f.heal(qprecovery.Tick{})
	f.askForHost(now)
	f.lookForStrays(now)
	f.step(neigh.Tick{})
}
