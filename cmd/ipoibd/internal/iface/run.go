package iface

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/link"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
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
		return err
	}
	views, unsubscribe := f.fab.dev.Subscribe()
	defer unsubscribe()
	f.rec.worker.start()
	f.host.worker.start()
	defer f.wind()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	slow := &f.path.slow
	for {
		f.publish(time.Now())
		due := f.setTimer(timer)
		var now turn
		select { // the channels are listed in order of priority
		case <-ctx.Done():
			return nil
		case st, ok := <-listen(&now, links):
			if !ok || !st.Present {
				return f.lost(ctx)
			}
			f.hostChanged(st)
			f.reconcile()
		case then := <-listen(&now, f.host.worker.results):
			f.host.worker.took(then)
		case then := <-listen(&now, f.rec.worker.results):
			f.rec.worker.took(then)
			f.reconcile()
		case ev := <-listen(&now, f.rec.faults):
			f.rec.fault(ev)
		case <-listen(&now, f.rec.ended):
			if f.rec.pumpsEnded() != nil {
				return f.lost(ctx)
			}
		case <-listen(&now, views):
			f.reconcile()
		case <-now.alarm(timer, due):
			f.expire(time.Now())
		case r := <-last(&now, f.fab.att.ahResults()):
			f.nbrs.created(r)
		case q := <-last(&now, f.queries):
			q()
		case ev := <-last(&now, f.rec.flushes):
			f.rec.fault(ev)
		case it := <-last(&now, slow.host.ready):
			f.nbrs.step(neigh.FromHost{Frame: it.data})
			slow.host.done(it)
		case it := <-last(&now, slow.fabric.ready):
			f.nbrs.step(neigh.FromFabric{Msg: it.data, SrcGID: it.from.GID, SrcQPN: it.from.QPN, Multicast: it.from.Multicast})
			slow.fabric.done(it)
		}
	}
}

// target is a session, and the plan of the port to use on it. Failures are counted per target.
type target struct {
	session *device.Session
	plan    port.Plan
}

// target returns the target on the device of a view, or an error that says why there is none.
func (f *fabric) target(view device.View, host link.State) (to target, err error) {
	to.session = view.Session
	switch {
	case !host.Up:
		err = fmt.Errorf("interface is down; bring it up with 'ip link set %s up'", host.Name)
	case view.Session == nil:
		err = view.Err
	default:
		want := f.want
		if a := f.att; a != nil {
			want.InUse = a.plan.GID
		}
		if to.plan, err = view.Plan(want); err == nil {
			to.plan.Groups = append(to.plan.Groups, f.joined...)
		}
	}
	return to, err
}

// reconcile adapts the attachment to the host's side and the device's view. It does nothing
// while the host's side is unknown or an operation is under way, after which it is called
// again. Only recovery handles the loss and the return of the device.
func (f *Iface) reconcile() {
	view := f.rec.follow()
	if !f.host.now.Present || f.rec.worker.busy > 0 {
		return
	}
	to, err := f.fab.target(view, f.host.now)
	if aim := f.fab.aim; to.session != aim.session || !to.plan.Equal(aim.plan) {
		f.fab.aim = to
		f.fab.retry.reset()
	}
	if err != nil {
		if was := f.fab.err; was == nil || was.Error() != err.Error() {
			f.log.Info("not up", "reason", err)
		}
		f.fab.err = err
	}
	a, idle := f.fab.att, f.rec.ladder.State() == qprecovery.Idle
	switch {
	case err != nil:
		if !idle && (to.session != nil || !f.host.now.Up) {
			f.rec.stop(err.Error())
		}
	case a == nil:
		if idle && !f.fab.retry.waiting(time.Now()) {
			if err := f.rec.come(to, f.rec.ladder.NextGen(), 0); err != nil {
				f.rec.retry(fmt.Errorf("cannot open queue pair: %w", err))
			}
		}
	case a.session != to.session: // recovery releases it
	case !a.plan.SameExceptGroups(to.plan):
		f.rec.stop("the port has changed")
	case !a.plan.SameQP(to.plan):
		if f.rec.ladder.State() == qprecovery.Healthy { // else once it is
			f.rec.regroup(to.plan)
		}
	case !a.plan.Equal(to.plan): // the queue pair stays
		a.plan = to.plan
		f.host.fitMTU(a.plan)
		f.nbrs.announce()
	}
}

// hostChanged handles a state of ib0 that the kernel has reported.
func (f *Iface) hostChanged(st link.State) {
	old := f.host.now
	f.host.changed(st, f.cfg.MTU)
	if a := f.fab.att; a != nil {
		f.host.fitMTU(a.plan)
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
	f.rec.lanes.discard(false)
	f.rec.badClient.end()
}

// setTimer sets the timer to the next deadline, and reports whether it is already due.
func (f *Iface) setTimer(t *time.Timer) (due bool) {
	now := time.Now()
	next := now.Add(time.Hour)
	for _, at := range []time.Time{f.nbrs.deadline(), f.rec.deadline(now), f.host.custody.at, f.shown.at} {
		next = qprecovery.Earlier(at, next)
	}
	t.Reset(next.Sub(now))
	return !next.After(now)
}

// expire handles the deadlines that are due.
func (f *Iface) expire(now time.Time) {
	if f.fab.retry.due(now) {
		f.reconcile()
	}
	f.host.expire(now)
	f.rec.expire(now)
	f.nbrs.expire(now)
}
