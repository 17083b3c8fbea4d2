package iface

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// attachment is the interface's use of one session.
type attachment struct {
	session         *device.Session
	plan            port.Plan
	gen             uint32           // of the queue pair
	ep              *device.Endpoint // belongs to the worker; Run has only the following
	self, broadcast hca.UDDest
	ahs             *device.AHWorkers
}

// address is the interface's link-layer address.
func (a *attachment) address() ipoib.Addr { return ipoib.NewAddr(a.self.QPN, a.plan.GID) }

// ahResults delivers the handles that were made. On a nil attachment it never delivers.
func (a *attachment) ahResults() <-chan device.AHResult {
	if a == nil {
		return nil
	}
	return a.ahs.Results()
}

// open opens the endpoint and attaches the lanes to it, on the worker. On error nothing is
// left behind except the use of the session.
func (a *attachment) open(spec device.EndpointSpec, ls lanes) (err error) {
	if a.ep, err = device.OpenEndpoint(a.session, spec, a.gen); err != nil {
		return err
	}
	if err := ls.attach(a.ep, a.gen); err != nil {
		return errors.Join(err, a.close(ls))
	}
	return nil
}

// close closes the endpoint, if there is one, on the worker. The lanes' pumps are halted.
func (a *attachment) close(ls lanes) error {
	if a.ep == nil {
		return nil
	}
	err := a.ep.Close()
	a.ep = nil
	ls.detach()
	return err
}

// replace stops the layers that a rung rebuilds, takes back what was posted to them, and
// starts new ones, on the worker (R10: each frame in flight is counted by how its request
// ended, or as dropped by the reset).
func (a *attachment) replace(ls lanes, run qprecovery.Run) error {
	if !run.Rung.Replaces(qprecovery.ScopeCQs) {
		if err := a.drain(ls); err != nil {
			return err
		}
	}
	err := a.ep.Stop(run.Rung)
	ls.detach()
	if err == nil {
		err = a.ep.Start(run.Rung, run.Gen)
	}
	if err == nil {
		err = ls.attach(a.ep, run.Gen)
	}
	return err
}

// drain completes the posted requests, each with its own status. It fails only if the
// device fails: a queue pair that refuses to move has been flushed already, or is as good as
// nonexistent.
func (a *attachment) drain(ls lanes) error {
	if err := a.ep.Fail(); errors.Is(err, hca.ErrIO) {
		return err
	}
	until := time.Now().Add(drainLimit)
	for _, l := range ls {
		// Requests that do not complete in time are taken back.
		_, _ = l.tx.Drain(until), l.rx.Drain(until)
	}
	return nil
}

// drainLimit bounds the wait for the completions of a queue pair that was moved
// to ERR. They come within microseconds.
const drainLimit = 5 * time.Millisecond

// come opens an attachment, on the worker; came continues. It is the only way up: a first
// start uses it without an operation (op 0), and RungDevice of the ladder uses it when the
// device is back.
func (r *recovery) come(to target, gen uint32, op uint64) error {
	if most, need := to.session.Attr().MaxQueues, len(r.lanes); most < need {
		return fmt.Errorf("queues per queue pair: the device has %d, the interface needs %d: %w", most, need, hca.ErrInvalid)
	}
	if !to.session.Acquire(r.cfg.Name) {
		return hca.ErrClosed
	}
	r.host.fitMTU(to.plan)
	a := &attachment{session: to.session, plan: to.plan, gen: gen}
	r.fab.coming, r.fab.used = a, to.session.Instance
	spec := device.EndpointSpec{
		Plan: to.plan, Queues: len(r.lanes), SendWRs: r.cfg.SendWRs, RecvWRs: r.cfg.RecvWRs,
		SendStride: ud.TxStride(ipoib.MaxMTU), RecvStride: ud.RxStride(hca.MaxMTU),
		OnEvent: r.onEvent,
	}
	r.worker.do(func() func() {
		err := a.open(spec, r.lanes)
		if err == nil {
			a.self, a.broadcast, a.ahs = a.ep.Self(), a.ep.Broadcast(), a.ep.AHs
		}
		return func() { r.came(a, op, err) }
	})
	return nil
}

// came continues once an attachment was opened, or could not be. If it is no longer wanted,
// stop queues the job that closes it.
func (r *recovery) came(a *attachment, op uint64, err error) {
	if r.fab.coming != a {
		r.accuse(err)
		return
	}
	if err == nil && r.moved(a) { // ib0 went down in the meantime, or the port changed
		r.stop("no longer wanted")
		return
	}
	r.fab.coming = nil
	if err != nil {
		a.session.Release(r.cfg.Name)
		r.cannotCome(a, op, fmt.Errorf("cannot open queue pair: %w", err))
		return
	}
	r.fab.att, r.fab.err = a, nil
	r.nbrs.use(a)
	if op != 0 {
		r.heal(qprecovery.Done{Op: op})
	} else {
		r.heal(qprecovery.Attached{Gen: a.gen})
		r.flow()
		if err := r.host.setCarrier(true); err != nil {
			r.noCarrier(err)
		}
	}
	if r.fab.att != a || r.ladder.State() != qprecovery.Healthy {
		return
	}
	r.fab.retry.succeed(time.Now())
	r.log.Info("up", "qpn", a.self.QPN.String(), "gid", a.plan.GID.String(), "mtu", r.host.now.MTU, "largest_mtu", a.plan.MTU())
}

// cannotCome decides what to do about a failed attempt. On a device that is back, only an
// error of the device leads to another reset.
func (r *recovery) cannotCome(a *attachment, op uint64, err error) {
	class := device.Classify(qprecovery.VerbModifyRTS, err)
	if op != 0 {
		r.failed(err)
	}
	switch {
	case op != 0 && r.moved(a):
		r.accuse(err)
		r.stop("the port has changed")
	case op != 0 && class.OfDevice():
		r.heal(qprecovery.Done{Op: op, Class: class})
	default:
		r.accuse(err)
		r.stop("cannot start")
		r.retry(err)
	}
}

// moved reports whether the port has changed since an attachment was planned. Then a refused
// verb says nothing about the device.
func (r *recovery) moved(a *attachment) bool {
	to, err := r.fab.target(r.fab.dev.View(), r.host.now)
	return to.session == a.session && (err != nil || !a.plan.SameQP(to.plan))
}

// retry plans another attempt.
func (r *recovery) retry(err error) {
	r.fab.retry.fail(time.Now())
	r.fab.err, r.fab.lastErr = err, err
	r.log.Error("not up", "err", err, "retry_in", r.fab.retry.pause)
}

// stop ends the recovery and the use of the device; the worker calls the verbs. The ladder
// is idle afterwards: actions of the ladder do not call stop, they queue it. Idempotent.
func (r *recovery) stop(why string) {
	if r.ladder.State() == qprecovery.Idle && r.fab.held() == nil {
		return
	}
	r.heal(qprecovery.Stopped{})
	if err := r.host.setCarrier(false); err != nil && r.host.now.Present {
		r.log.Error("cannot take the carrier down", "err", err)
	}
	if a := r.fab.att; a != nil {
		r.log.Info("closing queue pair", "qpn", a.self.QPN.String(), "reason", why)
		r.beginStale(time.Now())
	}
	r.letGo(func(s *device.Session) { s.Release(r.cfg.Name) }, func(err error) {
		if err != nil {
			r.log.Error("close queue pair", "err", err)
		}
		r.accuse(err)
	})
}

// letGo ends the use of the device's objects. The worker closes them after the jobs queued
// before, releases the session, and then calls the function then. letGo returns false if
// there is nothing to release.
func (r *recovery) letGo(release func(*device.Session), then func(error)) bool {
	a := r.fab.held()
	if a == nil {
		return false
	}
	if a == r.fab.att {
		r.lanes.halt()
		r.nbrs.leave()
	}
	r.fab.att, r.fab.coming = nil, nil
	r.worker.do(func() func() {
		err := a.close(r.lanes)
		return func() {
			release(a.session)
			then(err)
		}
	})
	return true
}

// accuse requests a reset of the device if a verb hangs outside of a rung (R8).
func (r *recovery) accuse(err error) {
	if device.Classify(qprecovery.VerbQueryQP, err) == qprecovery.ClassStuck {
		r.fab.dev.Ask(r.fab.used, qprecovery.ReasonVerbStuck)
	}
}

// fabric is the device's side.
type fabric struct {
	dev     *device.Device
	want    port.Want
	att     *attachment // in use; nil: none
	coming  *attachment // being opened; nil: none
	used    uint64      // instance of the session that was used last
	aim     target      // of retry
	retry   backoff
	err     error // why not up
	lastErr error // the last failure, even if it is over
}

// held returns the attachment in use or being opened, or nil. Even then the worker may still
// be closing one.
func (f *fabric) held() *attachment { return cmp.Or(f.att, f.coming) }
