package iface

import (
	"fmt"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// reconcile adapts the attachment to the host's side and the device's view. It does nothing
// while the host's side is unknown or an operation is under way, after which it is called
// again. Only recovery handles the loss and the return of the device.
func (r *recovery) reconcile() {
	view := r.follow()
	r.fabric.follow(view)
	if !r.fabric.host.present || r.fabric.worker.busy > 0 {
		return
	}
	to, err := r.fabric.target(view)
	if to.session != r.aim.session || !to.plan.Equal(r.aim.plan) {
		r.aim, r.retry = to, backoff{}
	}
	if err != nil {
		if r.err == nil || r.err.Error() != err.Error() {
			r.log.Info("not up", "reason", err)
		}
		r.err = err
	}
	a, idle := r.fabric.att, r.ladder.State() == qprecovery.Idle
	switch {
	case err != nil:
		if !idle && (to.session != nil || r.fabric.host.down != nil) && !r.joining(err) {
			r.stop(err.Error())
		}
	case a == nil:
		if idle && !r.retry.at.After(time.Now()) {
			if err := r.come(to, r.ladder.NextGen(), 0); err != nil {
				r.tryAgain(fmt.Errorf("cannot open queue pair: %w", err))
			}
		}
	case a.session != to.session: // recovery releases it
	case !a.plan.SameExceptPKeyIndex(to.plan):
		r.stop("the port has changed")
	case !a.plan.SameQP(to.plan):
		switch {
		case r.ladder.State() != qprecovery.Healthy: // once it is
		case a.plan.PKeyIndex != to.plan.PKeyIndex:
			r.reindex(to.plan.PKeyIndex)
		default:
			r.regroup(to.plan)
		}
	case !a.plan.Equal(to.plan): // the queue pair stays
		a.plan = to.plan
		r.tell(attached{newPlan: true})
	}
}

// come opens an attachment, and came handles the result. It is the only way up: a first
// start uses it without an operation (op 0), and RungDevice of the ladder uses it when the
// device is back.
func (r *recovery) come(to target, gen uint32, op uint64) error {
	err := r.fabric.open(to, gen, func(a *attachment, err error) { r.came(a, op, err) })
	if err == nil {
		r.tell(comes{})
	}
	return err
}

// came handles the result of come. If the attachment is no longer wanted, stop queues the job that
// closes it.
func (r *recovery) came(a *attachment, op uint64, err error) {
	switch {
	case r.fabric.coming != a:
		r.fabric.requestResetIfStuck(err)
		return
	case err == nil && r.fabric.moved(a, port.Plan.SameExceptGroups): // ib0 went down meanwhile, or the port changed
		r.stop("no longer wanted")
		return
	case err != nil:
		r.fabric.coming = nil
		a.session.Release(r.fabric.name)
		r.cannotCome(a, op, fmt.Errorf("cannot open queue pair: %w", err))
		return
	}
	r.fabric.att, r.fabric.coming, r.err = a, nil, nil
	r.tell(attached{isNew: true, then: func() {
		if op != 0 {
			r.step(qprecovery.Done{Op: op})
		} else {
			r.step(qprecovery.Attached{Gen: a.gen})
			r.flow()
			r.raiseCarrier()
		}
		if r.fabric.att == a && r.ladder.State() == qprecovery.Healthy {
			r.retry.succeed(time.Now())
			r.tell(up{})
		}
	}})
}

// cannotCome decides what to do about a failed attempt. On a device that is back, only an
// error of the device leads to another reset.
func (r *recovery) cannotCome(a *attachment, op uint64, err error) {
	class := qprecovery.OfVerbError(qprecovery.VerbModifyQP, err)
	if op != 0 {
		r.failed(err)
	}
	switch {
	case op != 0 && r.fabric.moved(a, port.Plan.SameQP):
		r.fabric.requestResetIfStuck(err)
		r.stop("the port has changed")
	case op != 0 && class.OfDevice():
		r.step(qprecovery.Done{Op: op, Class: class})
	default:
		r.restart("cannot start", err)
	}
}

// regroup attaches the queue pair to the groups of another plan. If a verb fails, the
// interface starts again with a new queue pair.
func (r *recovery) regroup(to port.Plan) {
	var groups map[hca.GID]hca.UDDest
	var self hca.UDDest
	r.fabric.use(func(a *attachment) error {
		err := a.ep.Regroup(to)
		groups, self = a.ep.Groups(), a.ep.Self()
		return err
	}, func(a *attachment, err error) {
		if err != nil {
			r.restart("cannot change its groups", err)
			return
		}
		r.log.Debug("groups attached", "count", len(groups)) // guests join and leave as they like
		a.plan, a.groups, a.self = to, groups, self
		r.lanes.identify(to)
		r.tell(attached{newPlan: true})
	})
}

// reindex resets the queue pair, to use another index of the P_Key table.
func (r *recovery) reindex(index uint16) {
	r.fabric.use(func(a *attachment) error {
		a.ep.Spec.Plan.PKeyIndex = index
		return nil
	}, func(a *attachment, _ error) {
		a.plan.PKeyIndex = index
		r.step(qprecovery.Order{Rung: qprecovery.RungResetQP, Reason: qprecovery.ReasonPortChanged})
	})
}

// restart ends the use of the device because of an error, and plans another attempt.
func (r *recovery) restart(why string, err error) {
	r.fabric.requestResetIfStuck(err)
	r.stop(why)
	r.tryAgain(err)
}

// tryAgain plans another attempt.
func (r *recovery) tryAgain(err error) {
	r.retry.fail(time.Now())
	r.err, r.lastErr = err, err
	r.log.Error("not up", "err", err, "retry_in", r.retry.pause)
}

// stop ends the recovery and the use of the device; the worker calls the verbs. The ladder
// is idle afterwards: actions of the ladder do not call stop, they queue it. Idempotent.
func (r *recovery) stop(why string) {
	if r.ladder.State() == qprecovery.Idle && r.fabric.held() == nil {
		return
	}
	r.step(qprecovery.Stopped{})
	if !r.left {
		r.dropCarrier()
		if a := r.fabric.att; a != nil {
			r.log.Info("closing queue pair", "qpn", a.self.QPN.String(), "reason", why)
			r.beginStale(time.Now())
		}
	}
	r.leaveDevice(false, func(err error) {
		if err != nil {
			r.log.Error("cannot close the queue pair", "err", err)
		}
		r.fabric.requestResetIfStuck(err)
	})
}

// leaveDevice ends the use of the device's objects, and calls the function then when they are closed. It returns false
// if there is nothing to release.
func (r *recovery) leaveDevice(forReset bool, then func(error)) bool {
	if r.fabric.held() == nil {
		return false
	}
	if r.fabric.att != nil {
		r.failed(r.lanes.halt()) // the device has failed, if one hangs
		r.tell(detached{})
	}
	r.fabric.close(forReset, then)
	return true
}
