package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/link"
)

// Run runs the interface until ctx ends, and then returns nil, or until the interface fails. It is
// called once.
func (f *Iface) Run(ctx context.Context) error {
	defer close(f.done)
	defer f.ends()
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
	views, unsubscribe := f.fabric.dev.Subscribe()
	defer unsubscribe()
	f.host.tap.Own()
	f.fabric.host = f.host.side()
	f.fabric.worker.start()
	f.host.worker.start()
	if f.cfg.Netns == "" { // remove or replace the program of an earlier process
		f.host.attachFast()
	}
	defer f.wind()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for !f.rec.left {
		f.passOn()
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
			if f.host.mtu.Fresh { // the operator has changed it
				f.fit()
			}
		case then := <-listen(&now, f.fabric.worker.results):
			f.fabric.worker.took(then)
			f.passOn()
			f.rec.reconcile()
		case ev := <-listen(&now, f.lanes.signals.faults):
			f.rec.fault(ev)
		case <-listen(&now, f.lanes.signals.ended):
			if f.rec.pumpsEnded() != nil {
				return f.lost(ctx)
			}
		case <-listen(&now, views):
			f.rec.reconcile()
		case <-listen(&now, f.fabric.member.ready):
			f.nbrs.pathsFound(f.fabric.member.take())
			f.rec.reconcile()
		case <-listen(&now, f.lanes.signals.stirred):
			f.rec.stir(time.Now())
			f.passOn()
			f.nbrs.rest()
		case <-listen(&now, f.nbrs.strayed):
			f.nbrs.planStrays(time.Now())
		case <-now.alarm(timer, late):
			f.expire(time.Now())
		case it := <-listen(&now, f.slow.first.ready):
			f.nbrs.fromFabric(f.slow.first, it)
		case r := <-last(&now, f.fabric.att.ahResults()):
			f.fabric.requestResetIfStuck(f.nbrs.created(r))
		case q := <-last(&now, f.queries):
			q()
		case ev := <-last(&now, f.lanes.signals.flushes):
			f.rec.fault(ev)
		case it := <-last(&now, f.slow.host.ready):
			f.nbrs.fromHost(f.slow.host, it)
		case it := <-last(&now, f.slow.guests.ready):
			f.nbrs.fromHost(f.slow.guests, it)
		case it := <-last(&now, f.slow.fabric.ready):
			f.nbrs.fromFabric(f.slow.fabric, it)
		}
	}
	return nil
}

// do runs a function on the goroutine that owns the interface. Errors: the error of ctx, or why
// the interface has ended.
func (f *Iface) do(ctx context.Context, what func()) error {
	ended := make(chan struct{})
	select {
	case f.queries <- func() { what(); close(ended) }:
		<-ended
		return nil
	case <-f.done:
		return cmp.Or(f.end, errEnded)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// expire does what is due.
func (f *Iface) expire(now time.Time) {
	if due(&f.host.narrow.until, now) {
		f.fit()
	}
	if f.host.expire(now) {
		ask(&f.host.worker, f.host.tap.Unresolved, f.nbrs.hostAsks)
	}
	m := &f.fabric.member
	if due(&m.host.at, now) {
		m.read(&f.host.worker, f.host.tap)
	}
	if due(&m.due, now) {
		m.want(f.nbrs.table.Groups())
		f.rec.reconcile()
	}
	f.rec.expire(now)
	f.passOn()
	f.nbrs.expire(now)
	f.nbrs.rest()
	f.examine(now)
}

// passOn passes on what the recovery and the peer table have for the others.
func (f *Iface) passOn() {
	for len(f.rec.events) > 0 {
		event := f.rec.events[0]
		f.rec.events = f.rec.events[1:]
		a := f.fabric.att
		switch event := event.(type) {
		case comes:
			f.fit()
		case attached:
			if event.newPlan {
				f.fit()
			}
			f.useFast(a)
			believed := f.reports.believed(a.plan)
			if event.isNew {
				ask(&f.host.worker, f.host.tap.Neighbours, f.nbrs.hostNeighbours)
				f.fabric.requestResetIfStuck(f.nbrs.use(a, believed))
			} else {
				f.nbrs.announce(believed)
			}
			if event.then != nil {
				event.then()
			}
		case up:
			f.log.Info("up", "qpn", a.self.QPN.String(), "gid", a.plan.GID.String(),
				"mtu", f.host.mtuSoon(), "largest_mtu", f.reports.believed(a.plan).MTU())
		case detached:
			f.nbrs.leave()
		case tooLong:
			f.host.refused(event.bytes)
		}
	}
	for _, r := range f.nbrs.replies {
		f.reports.answered(time.Now(), f.fabric.att, r, f.log)
	}
	f.nbrs.replies = f.nbrs.replies[:0]
}

// useFast begins to use the fast path of the queue pair.
func (f *Iface) useFast(a *attachment) {
	for _, ev := range f.fast.use(a.fast) {
		f.nbrs.step(ev)
	}
	if a.fast.Path != nil {
		f.host.attachFast()
	}
	f.checkHost()
}

// checkHost holds the fast path while ib0 is not where its programs expect it, and while another program watches it.
func (f *Iface) checkHost() {
	f.fast.setHold(holdWatched, f.host.now.Promiscuous)
	a := f.fabric.att
	f.fast.setHold(holdAway, a != nil && a.fast.Path != nil && a.netdev != f.fabric.host.netdev)
}

// hostChanged handles a state of ib0 that the kernel has reported.
func (f *Iface) hostChanged(st link.State) {
	old := f.host.now
	f.host.changed(st, f.cfg.MTU)
	f.fabric.host = f.host.side()
	f.checkHost()
	f.fit()
	f.nbrs.hostChanged(old, f.host.now, f.host.ownAddrs())
}

// lost returns what became of an interface that netlink no longer shows: its TAP still
// works if it was only moved to a network namespace that this process may not enter.
func (f *Iface) lost(ctx context.Context) error {
	f.ends()
	f.host.now = link.State{}
	f.fabric.host = f.host.side()
	if ctx.Err() != nil {
		return nil
	}
	f.rec.stop("the interface is gone")
	f.passOn()
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
	f.ends()
	f.rec.stop("stopping")
	if !f.rec.left { // else another process has joined the same groups of the port, and does what is due for the neighbours
		f.fabric.member.leave()
		f.passOn()
	}
	f.fabric.worker.close()
	f.host.worker.close()
	f.lanes.discard(false)
	f.nbrs.strays.end()
	f.fabric.badClient.end()
}

// setTimer sets the timer to the next deadline, and reports whether it is already due.
func (f *Iface) setTimer(t *time.Timer) (late bool) {
	now := time.Now()
	next := earliest(
		now.Add(time.Hour),
		f.nbrs.deadline(),
		f.rec.deadline(now),
		f.host.deadline(),
		f.fabric.member.deadline(),
		f.shown.at,
		f.reports.at,
	)
	t.Reset(next.Sub(now))
	return !next.After(now)
}
