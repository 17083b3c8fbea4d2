package iface

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/link"
	"ipoibd/neigh"
)

// Run runs the interface until ctx ends, and then returns nil, or until the interface fails. It is
// called once.
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
		return err
	}
	views, unsubscribe := f.rec.dev.Subscribe()
	defer unsubscribe()
	f.rec.worker.start()
	f.host.worker.start()
	defer f.wind()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		f.publish(time.Now())
		late := f.setTimer(timer)
		var now turn
		select { // the channels are listed in order of priority
		case <-ctx.Done():
			return nil
		case st, ok := <-listen(&now, links):
			if !ok || !st.Present {
				return f.lost(ctx)
			}
			f.hostChanged(st)
			f.rec.reconcile()
		case then := <-listen(&now, f.host.worker.results):
			f.host.worker.took(then)
		case then := <-listen(&now, f.rec.worker.results):
			f.rec.worker.took(then)
			f.rec.reconcile()
		case ev := <-listen(&now, f.rec.faults):
			f.rec.fault(ev)
		case <-listen(&now, f.rec.ended):
			if f.rec.pumpsEnded() != nil {
				return f.lost(ctx)
			}
		case <-listen(&now, views):
			f.rec.reconcile()
		case <-now.alarm(timer, late):
			at := time.Now()
			if due(&f.host.custody.at, at) {
				f.host.inspect()
			}
			f.rec.expire(at)
			f.nbrs.expire(at)
		case r := <-last(&now, f.rec.att.ahResults()):
			f.nbrs.created(r)
		case q := <-last(&now, f.queries):
			q()
		case ev := <-last(&now, f.rec.flushes):
			f.rec.fault(ev)
		case it := <-last(&now, f.slow.host.ready):
			f.nbrs.step(neigh.FromHost{Frame: it.data})
			f.slow.host.done(it)
		case it := <-last(&now, f.slow.fabric.ready):
			f.nbrs.step(neigh.FromFabric{Msg: it.data, SrcGID: it.from.GID, SrcQPN: it.from.QPN, Multicast: it.from.Multicast})
			f.slow.fabric.done(it)
		}
	}
}

// hostChanged handles a state of ib0 that the kernel has reported.
func (f *Iface) hostChanged(st link.State) {
	old := f.host.now
	f.host.changed(st, f.cfg.MTU)
	if a := f.rec.att; a != nil {
		f.host.fit(a.plan, a.session.Attr(), f.cfg.SendWRs)
	}
	f.nbrs.hostChanged(old, f.host.now)
}

// lost returns what became of an interface that netlink no longer shows: its TAP still
// works if it was only moved to a network namespace that this process may not enter.
func (f *Iface) lost(ctx context.Context) error {
	f.host.now = link.State{}
	if ctx.Err() != nil {
		return nil
	}
	f.rec.stop("the interface is gone")
	err := f.host.tap.SetCarrier(false)
	switch {
	case err == nil:
		err = ErrMoved
	case errors.Is(err, link.ErrGone):
		err = ErrDeleted
	}
	return fmt.Errorf("%s: %w", f.cfg.Name, err)
}

// wind ends everything, and leaves no object of the device in use.
func (f *Iface) wind() {
	f.rec.stop("stopping")
	f.rec.worker.close()
	f.host.worker.close()
	f.lanes.discard(false)
	f.rec.badClient.end()
}

// setTimer sets the timer to the next deadline, and reports whether it is already due.
func (f *Iface) setTimer(t *time.Timer) (late bool) {
	now := time.Now()
	next := earliest(now.Add(time.Hour), f.nbrs.deadline(), f.rec.deadline(now), f.host.custody.at, earliest(f.host.asks...), f.shown.at)
	t.Reset(next.Sub(now))
	return !next.After(now)
}
