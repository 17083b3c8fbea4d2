package iface

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// fabric is the device's side. Even without an attachment the worker may still be closing one.
type fabric struct {
	dev     *device.Device
	want    port.Want
	joined  []port.Group    // at a subnet administrator, which is not implemented yet: none
	att     *attachment     // in use; nil: none
	coming  *attachment     // being opened; nil: none
	onTAP   Offloads        // belongs to the worker while that is busy
	used    uint64          // instance of the session that was used last
	seen    *device.Session // of the view that the ladder knows; nil: none
	aim     target          // of retry
	retry   backoff
	err     error // why not up
	lastErr error // the last failure, even if it is over
}

// errSessionEnded means that the device has gone since its view was read.
var errSessionEnded = fmt.Errorf("the session of the device has ended: %w", hca.ErrClosed)

// held returns the attachment in use or being opened, or nil.
func (f *fabric) held() *attachment { return cmp.Or(f.att, f.coming) }

// target is a session, and the plan of the port to use on it. Failures are counted per target.
type target struct {
	session *device.Session
	plan    port.Plan
}

// target returns the target on the device of a view, or an error that says why there is none.
func (r *recovery) target(view device.View) (to target, err error) {
	to.session = view.Session
	switch host := r.f.host.now; {
	case !host.Up && r.f.host.assignment.rising:
		err = errors.New("interface is down; setting it up")
	case !host.Up:
		err = fmt.Errorf("interface is down; bring it up: %s", report.Command("ip link set %s up", host.Name))
	case view.Session == nil:
		err = view.Err
	default:
		want := r.want
		if r.att != nil {
			want.InUse = r.att.plan.GID
		}
		if to.plan, err = view.Plan(want); err == nil {
			to.plan.Groups = append(to.plan.Groups, r.joined...)
		}
	}
	return to, err
}

// reconcile adapts the attachment to the host's side and the device's view. It does nothing
// while the host's side is unknown or an operation is under way, after which it is called
// again. Only recovery handles the loss and the return of the device.
func (r *recovery) reconcile() {
	view := r.follow()
	if !r.f.host.now.Present || r.worker.busy > 0 {
		return
	}
	to, err := r.target(view)
	if to.session != r.aim.session || !to.plan.Equal(r.aim.plan) {
		r.aim, r.retry = to, backoff{}
	}
	if err != nil {
		if r.err == nil || r.err.Error() != err.Error() {
			r.f.log.Info("not up", "reason", err)
		}
		r.err = err
	}
	a, idle := r.att, r.ladder.State() == qprecovery.Idle
	switch {
	case err != nil:
		if !idle && (to.session != nil || !r.f.host.now.Up) {
			r.stop(err.Error())
		}
	case a == nil:
		if idle && !r.retry.at.After(time.Now()) {
			if err := r.come(to, r.ladder.NextGen(), 0); err != nil {
				r.tryAgain(fmt.Errorf("cannot open queue pair: %w", err))
			}
		}
	case a.session != to.session: // recovery releases it
	case !a.plan.SameExceptGroups(to.plan):
		r.stop("the port has changed")
	case !a.plan.SameQP(to.plan):
		if r.ladder.State() == qprecovery.Healthy { // else once it is
			r.regroup(to.plan)
		}
	case !a.plan.Equal(to.plan): // the queue pair stays
		a.plan = to.plan
		r.f.fit(a.plan)
		r.f.nbrs.announce()
	}
}

// come opens an attachment on the worker, and came handles the result. It is the only way up: a first
// start uses it without an operation (op 0), and RungDevice of the ladder uses it when the
// device is back.
func (r *recovery) come(to target, gen uint32, op uint64) error {
	ls := r.f.lanes
	if most, need := to.session.Attr().MaxQueues, len(ls.all); most < need {
		return fmt.Errorf("the device supports %d queues per queue pair, the interface needs %d: %w",
			most, need, hca.ErrInvalid)
	}
	if err := ls.renew(); err != nil {
		return err
	}
	if !to.session.Acquire(r.f.cfg.Name) {
		return errSessionEnded
	}
	r.f.fit(to.plan)
	a := &attachment{session: to.session, plan: to.plan, gen: gen, onTAP: &r.onTAP}
	r.coming, r.used = a, to.session.Instance
	spec := endpoint.Spec{
		Plan: to.plan, Queues: len(ls.all), SendWRs: r.f.cfg.SendWRs, RecvWRs: r.f.cfg.RecvWRs,
		SendStride: ud.TxStride(ipoib.MaxMTU, to.session.Attr().MaxTSO),
		RecvStride: ud.RxStride(hca.MaxMTU, to.session.Attr().LRO),
		OnEvent:    ls.signals.onEvent, QPN: r.f.heir.takeQPN(),
	}
	r.worker.do(func() func() {
		err := a.open(spec, r.f.host.tap, ls)
		return func() { r.came(a, op, err) }
	})
	return nil
}

// came handles the result of come. If the attachment is no longer wanted, stop queues the job that
// closes it.
func (r *recovery) came(a *attachment, op uint64, err error) {
	switch {
	case r.coming != a:
		r.requestResetIfStuck(err)
		return
	case err == nil && r.moved(a, port.Plan.SameExceptGroups): // ib0 went down meanwhile, or the port changed
		r.stop("no longer wanted")
		return
	case err != nil:
		r.coming = nil
		a.session.Release(r.f.cfg.Name)
		r.cannotCome(a, op, fmt.Errorf("cannot open queue pair: %w", err))
		return
	}
	r.att, r.coming, r.err = a, nil, nil
	r.f.nbrs.use()
	r.f.heir.awaitHandles(&r.f.nbrs)
	if op != 0 {
		r.step(qprecovery.Done{Op: op})
	} else {
		r.step(qprecovery.Attached{Gen: a.gen})
		r.flow()
		r.raiseCarrier()
	}
	if r.att != a || r.ladder.State() != qprecovery.Healthy {
		return
	}
	r.retry.succeed(time.Now())
	r.f.log.Info("up",
		"qpn", a.self.QPN.String(), "gid", a.plan.GID.String(),
		"mtu", r.f.host.mtuSoon(), "largest_mtu", r.f.reports.believed(a.plan).MTU())
}

// cannotCome decides what to do about a failed attempt. On a device that is back, only an
// error of the device leads to another reset.
func (r *recovery) cannotCome(a *attachment, op uint64, err error) {
	class := qprecovery.OfVerbError(qprecovery.VerbModifyRTS, err)
	if op != 0 {
		r.failed(err)
	}
	switch {
	case op != 0 && r.moved(a, port.Plan.SameQP):
		r.requestResetIfStuck(err)
		r.stop("the port has changed")
	case op != 0 && class.OfDevice():
		r.step(qprecovery.Done{Op: op, Class: class})
	default:
		r.restart("cannot start", err)
	}
}

// moved reports whether the port is no longer the one that an attachment was made for, by a
// comparison of the plans. If it differs even in its groups, a verb that was refused says
// nothing about the device.
func (r *recovery) moved(a *attachment, same func(was, is port.Plan) bool) bool {
	to, err := r.target(r.dev.View())
	return to.session == a.session && (err != nil || !same(a.plan, to.plan))
}

// use calls do on the worker, with the attachment in use, and then continues with its
// result. If stop came first, it only examines the error.
func (r *recovery) use(do func(*attachment) error, then func(*attachment, error)) {
	a := r.att
	r.worker.do(func() func() {
		err := do(a)
		return func() {
			if r.att != a {
				r.requestResetIfStuck(err)
				return
			}
			then(a, err)
		}
	})
}

// regroup attaches the queue pair to the groups of another plan. If a verb fails, the
// interface starts again with a new queue pair.
func (r *recovery) regroup(to port.Plan) {
	var groups map[hca.GID]hca.UDDest
	r.use(func(a *attachment) error {
		err := a.ep.Regroup(to)
		groups = a.ep.Groups()
		return err
	}, func(a *attachment, err error) {
		if err != nil {
			r.restart("cannot change its groups", err)
			return
		}
		r.f.log.Info("groups attached", "count", len(groups))
		a.plan, a.groups = to, groups
		r.f.fit(to)
		r.f.nbrs.announce()
	})
}

// restart ends the use of the device because of an error, and plans another attempt.
func (r *recovery) restart(why string, err error) {
	r.requestResetIfStuck(err)
	r.stop(why)
	r.tryAgain(err)
}

// tryAgain plans another attempt.
func (r *recovery) tryAgain(err error) {
	r.retry.fail(time.Now())
	r.err, r.lastErr = err, err
	r.f.log.Error("not up", "err", err, "retry_in", r.retry.pause)
}

// stop ends the recovery and the use of the device; the worker calls the verbs. The ladder
// is idle afterwards: actions of the ladder do not call stop, they queue it. Idempotent.
func (r *recovery) stop(why string) {
	if r.ladder.State() == qprecovery.Idle && r.held() == nil {
		return
	}
	r.step(qprecovery.Stopped{})
	if !r.f.heir.left { // else carrier and frames belong to another process
		r.dropCarrier()
		if r.att != nil {
			r.f.log.Info("closing queue pair", "qpn", r.att.self.QPN.String(), "reason", why)
			r.beginStale(time.Now())
		}
	}
	r.leaveDevice(false, func(err error) {
		if err != nil {
			r.f.log.Error("cannot close the queue pair", "err", err)
		}
		r.requestResetIfStuck(err)
	})
}

// leaveDevice ends the use of the device's objects. The worker closes them after the jobs queued
// before, releases the session, and then calls the function then. leaveDevice returns false if
// there is nothing to release.
func (r *recovery) leaveDevice(forReset bool, then func(error)) bool {
	a := r.held()
	if a == nil {
		return false
	}
	if a == r.att {
		r.failed(r.f.lanes.halt()) // the device has failed, if one hangs
		r.att = nil
		r.f.nbrs.leave()
	}
	r.coming = nil
	r.worker.do(func() func() {
		err := a.close(r.f.lanes)
		return func() {
			if forReset {
				r.badClient.release(a.session)
			} else {
				a.session.Release(r.f.cfg.Name)
			}
			then(err)
		}
	})
	return true
}

// requestResetIfStuck requests a reset of the device if a verb outside a rung is stuck (R8).
func (r *recovery) requestResetIfStuck(err error) {
	if qprecovery.OfVerbError(qprecovery.VerbQueryQP, err) == qprecovery.ClassStuck {
		r.dev.Ask(r.used, qprecovery.ReasonVerbStuck)
	}
}
