package iface

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// target is one way of being up. Failures are counted for each target separately.
type target struct {
	session *device.Session
	plan    port.Plan
}

// target returns how to be up on the device of a view, or an error that says why not.
func (f *fabric) target(view device.View, host link.State) (to target, err error) {
	to.session = view.Session
	switch n := int(f.want.Port); {
	case !host.Up:
		err = fmt.Errorf("interface is down; bring it up with 'ip link set %s up'", host.Name)
	case view.Session == nil:
		err = view.Err
	case n > len(view.Ports):
		err = fmt.Errorf("device has no port %d: %w", n, hca.ErrInvalid)
	default:
		want := f.want
		if a := f.att; a != nil {
			want.InUse = a.plan.GID
		}
		to.plan, err = port.MakePlan(view.Ports[n-1], want)
	}
	return to, err
}

// reconcile makes the attachment what the host's side and the device's view ask
// for, if the host's side is known yet and no operation is under way: after one
// it is called again. Only recovery handles the loss and the return of the device.
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
	case !a.plan.SameQP(to.plan):
		f.rec.stop("the port has changed")
	default:
		f.rec.adapt(to.plan)
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

var errStarting = errors.New("starting")
