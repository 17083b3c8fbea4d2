package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

const (
	// staleAfter is how long the host's frames wait for a carrier that went down. Until
	// then they are worth sending: a TCP connection whose retransmissions are among them
	// continues at once. Older ones do harm: TCP mistakes the late acknowledgement for the
	// round-trip time, and waits three times as long if another packet is lost. After
	// outages of 3 s in which all frames were kept, one connection in three stalled for
	// another 5-10 s.
	staleAfter = 500 * time.Millisecond
)

// recovery is the shell of the interface's ladder. It opens and closes attachments, because
// that is also how the ladder's last rung starts again.
type recovery struct {
	f      *Iface
	fabric // the device's side

	ladder  ladder
	journal *journal.Journal
	actions []qprecovery.Action
	later   []func()  // work caused by actions, for after all actions of their step
	stale   time.Time // when to begin to drop the host's frames; zero: never, or it has begun

	worker    worker  // calls the verbs
	pumps     backoff // before restarting pumps that ended without a fault
	badClient badClient
}

// ladder is a [qprecovery.Ladder].
type ladder interface {
	Step(now time.Time, ev qprecovery.Event, out []qprecovery.Action) []qprecovery.Action
	NextDeadline() (at time.Time, ok bool)
	NextGen() uint32
	Takes(ev qprecovery.Order) bool
	State() qprecovery.State
	Device() qprecovery.DeviceView
	Reason() qprecovery.Reason
	History() []qprecovery.Record
	Counts() qprecovery.Counts
	HandOver(now time.Time) (h qprecovery.Handed, ok bool)
}

// deadline returns when to call expire.
func (r *recovery) deadline(now time.Time) time.Time {
	at, _ := r.ladder.NextDeadline()
	at = earliest(at, r.retry.at, r.pumps.at, r.badClient.at, r.stale)
	if r.att != nil {
		rest := r.f.lanes.resting()
		for _, l := range r.f.lanes.all {
			at = earliest(at, l.deadline(now, rest))
		}
	}
	return at
}

// expire does what is due.
func (r *recovery) expire(now time.Time) {
	if due(&r.retry.at, now) {
		r.reconcile()
	}
	if due(&r.badClient.at, now) {
		r.badClient.end()
	}
	if due(&r.stale, now) {
		r.f.lanes.discard(true)
	}
	if due(&r.pumps.at, now) && r.att != nil && r.ladder.State() == qprecovery.Healthy {
		r.flow()
	}
	rest := r.f.lanes.resting()
	for _, l := range r.f.lanes.all {
		if r.att != nil && !now.Before(l.deadline(now, rest)) {
			r.sample(l, now)
		}
	}
	r.f.nbrs.rest()
	r.step(qprecovery.Tick{})
}

// fault reports a fault to the ladder, and logs a request that failed.
func (r *recovery) fault(ev qprecovery.Fault) {
	if q := ev.Request; q != nil {
		r.f.log.Warn("work request failed", "status", q.Status.String(), "opcode", q.Opcode.String(),
			"bytes", q.SGList[0].Length, "lkey", q.SGList[0].LKey, "to", q.DestQPN.String(), "vendor_err", q.VendorErr)
		if q.Status == hca.WCLocLenErr && q.Opcode == hca.WCSend && r.att != nil {
			r.f.host.refused(int(q.SGList[0].Length) - ipoib.HeaderLen)
		}
	}
	r.step(ev)
}

// step passes an event to the ladder, carries out the resulting actions, and then the work
// that they caused, in order. Actions never call step; they append to later.
func (r *recovery) step(ev qprecovery.Event) {
	was := r.ladder.State()
	r.actions = r.ladder.Step(time.Now(), ev, r.actions[:0])
	now := r.ladder.State()
	ill := func(s qprecovery.State) bool { return s != qprecovery.Idle && s != qprecovery.Healthy }
	if now != was && (ill(now) || ill(was)) { // going up and down is no recovery
		r.f.log.Info("recovery", "state", now.String(), "was", was.String(), "reason", r.ladder.Reason().String())
	}
	for _, a := range r.actions {
		r.carryOut(a)
	}
	clear(r.actions)
	for len(r.later) > 0 {
		next := r.later[0]
		r.later = r.later[1:]
		next()
	}
}

func (r *recovery) carryOut(a qprecovery.Action) {
	switch a := a.(type) {
	case qprecovery.Query:
		r.operate(a.Op, qprecovery.VerbQueryQP, func(att *attachment, done *qprecovery.Done) (err error) {
			done.State, err = att.ep.State()
			return err
		}, nil)
	case qprecovery.Prove:
		r.operate(a.Op, qprecovery.VerbCreateQP, r.prove, nil)
	case qprecovery.Run:
		r.run(a)
	case qprecovery.Release:
		done := func(err error) {
			r.failed(err)
			r.step(qprecovery.Done{Op: a.Op, Class: qprecovery.OfVerbError(qprecovery.VerbDestroyQP, err)})
		}
		if !r.leaveDevice(true, done) {
			r.later = append(r.later, func() { done(nil) })
		}
	case qprecovery.Ready: // errors do not matter, because the device is being reset
		r.leaveDevice(true, func(error) {})
	case qprecovery.RequestReset:
		r.dev.Ask(r.used, a.Reason)
	case qprecovery.HoldTraffic: // messages from the fabric are still delivered
		r.hung(r.f.lanes.hold())
	case qprecovery.ReleaseTraffic:
		r.flow()
	case qprecovery.CarrierDown, qprecovery.CarrierUp:
		on := a == qprecovery.Action(qprecovery.CarrierUp{})
		r.f.log.Info("carrier", "on", on)
		if on {
			r.raiseCarrier()
		} else {
			r.dropCarrier()
			r.beginStale(time.Now())
		}
	case qprecovery.Entered:
		r.journal.Add(report.Entered(r.f.cfg.Name, a))
	case qprecovery.Ended:
		r.journal.Add(report.Ended(r.f.cfg.Name, a))
	}
}

// raiseCarrier raises the carrier. An interface that cannot have one starts again.
func (r *recovery) raiseCarrier() {
	a := r.att
	r.f.host.setCarrier(true, func(err error) {
		if err != nil && r.att == a {
			r.restart("no carrier", err)
		}
	})
}

// dropCarrier drops the carrier.
func (r *recovery) dropCarrier() {
	r.f.host.setCarrier(false, func(err error) {
		if err != nil && r.f.host.now.Present {
			r.f.log.Error("cannot take the carrier down", "err", err)
		}
	})
}

// run runs a rung.
func (r *recovery) run(run qprecovery.Run) {
	switch run.Rung {
	case qprecovery.RungDevice:
		to, err := r.target(r.dev.View())
		if err == nil {
			err = r.come(to, run.Gen, run.Op)
		}
		switch {
		case err == nil:
		case errors.Is(err, errSessionEnded), to.session == nil && r.f.host.now.Up: // follow reports that next
			r.later = append(r.later, func() {
				ended := qprecovery.OfVerbError(qprecovery.VerbCreateQP, errSessionEnded)
				r.step(qprecovery.Done{Op: run.Op, Class: ended})
			})
		default: // recovery does not wait for a port that cannot be used
			r.later = append(r.later, func() { r.stop(err.Error()) })
		}
	case qprecovery.RungResumeQP:
		resume := func(a *attachment, _ *qprecovery.Done) error { return a.ep.Resume() }
		r.operate(run.Op, qprecovery.VerbModifyRTS, resume, nil)
	case qprecovery.RungResetQP, qprecovery.RungRecreateQP, qprecovery.RungRebuildCQ:
		r.hung(r.f.lanes.halt())
		var self hca.UDDest
		r.operate(run.Op, qprecovery.VerbModifyRTS, func(a *attachment, _ *qprecovery.Done) error {
			err := a.replace(r.f.lanes, run)
			if err == nil { // the next job may already change the endpoint when the result arrives
				self = a.ep.Self()
			}
			return err
		}, func() {
			r.att.gen, r.att.self = run.Gen, self
			r.f.nbrs.announce()
		})
	case qprecovery.RungNone, qprecovery.RungSuspend, qprecovery.RungWait, qprecovery.RungGiveUp, qprecovery.NumRung:
		// The ladder runs none of these.
	}
}

// prove sends probes through a fresh queue pair that carries nothing else.
func (r *recovery) prove(a *attachment, done *qprecovery.Done) (err error) {
	done.Frozen, err = a.ep.Prove()
	switch {
	case done.Frozen:
		r.f.log.Error("the device is frozen: probes on a fresh queue pair also went unanswered")
	case err == nil:
		r.f.log.Warn("freeze not proven: the device answers on a fresh queue pair, " +
			"or its wire is full, or its port is down")
	}
	return err
}

// operate runs an operation of the ladder on the worker, and then reports its result. verb
// is for an error that names none; succeeded follows a success, and may be nil.
func (r *recovery) operate(
	op uint64, verb qprecovery.Verb, do func(*attachment, *qprecovery.Done) error, succeeded func(),
) {
	done := qprecovery.Done{Op: op}
	r.use(func(a *attachment) error { return do(a, &done) }, func(a *attachment, err error) {
		done.Class = qprecovery.OfVerbError(verb, err)
		r.failed(err)
		switch {
		case err == nil && succeeded != nil:
			succeeded()
		case err != nil && verb == qprecovery.VerbModifyRTS && r.moved(a, port.Plan.SameQP):
			r.requestResetIfStuck(err)
			r.stop("the port has changed")
			return
		}
		r.step(done)
	})
}

// failed records an error of an operation.
func (r *recovery) failed(err error) {
	if err != nil {
		r.lastErr = err
		r.f.log.Warn("a step of the recovery failed; recovery continues",
			"state", r.ladder.State().String(), "err", err)
	}
}

// hung reports the error of a lane that was lost, unless it is nil: a post or a poll that hangs is a
// stuck verb (R8).
func (r *recovery) hung(err error) {
	if err == nil {
		return
	}
	r.failed(err)
	ev := qprecovery.Fault{Gen: r.att.gen, Class: qprecovery.OfVerbError(qprecovery.VerbPollCQ, err)}
	r.later = append(r.later, func() { r.step(ev) })
}

// flow lets frames pass both ways.
func (r *recovery) flow() {
	if r.att != nil {
		r.stale = time.Time{}
		r.hung(r.f.lanes.start(r.att.gen))
		r.pumps.succeed(time.Now())
	}
}

// beginStale plans to drop the host's frames, because there is no carrier (R27): the kernel sends
// no new ones, and those that it has sent become stale in the TAP's queue.
func (r *recovery) beginStale(now time.Time) {
	if r.stale.IsZero() && !r.f.lanes.all[0].stale.running {
		r.stale = now.Add(staleAfter)
	}
}

// pumpsEnded handles pumps that have failed. An error means that ib0 is gone.
func (r *recovery) pumpsEnded() error {
	for _, l := range r.f.lanes.all {
		for _, p := range []*pump{&l.out, &l.in} {
			err := p.failure()
			switch {
			case err == nil:
				continue
			case errors.Is(err, link.ErrGone):
				return err
			}
			r.lastErr = err
			r.f.log.Warn("sending or receiving has stopped; restarting it", "err", err)
			r.step(qprecovery.Fault{Gen: p.gen, Class: qprecovery.OfVerbError(p.verb, err)})
			if r.ladder.State() == qprecovery.Healthy && !p.running { // no fault: restart it after a pause
				r.pumps.fail(time.Now())
			}
		}
	}
	return nil
}

// follow reports changes of the device to the ladder. It returns the view that the ladder
// knows; nothing may act on a later view before the ladder knows it. Views coalesce: if a session
// has ended and the next one is open already, the ladder learns of the end first (R13).
func (r *recovery) follow() device.View {
	for {
		v, knows := r.dev.View(), r.ladder.Device()
		switch {
		case knows == qprecovery.ViewUp && (v.Session == nil || r.seen != nil && r.seen != v.Session):
			r.seen = nil
			r.step(qprecovery.DeviceDown{})
		case knows != qprecovery.ViewUp && v.Session != nil && r.held() == nil && r.worker.busy == 0:
			if _, err := r.target(v); err != nil { // recovery does not wait for a port that cannot be used
				r.stop(err.Error())
			}
			r.step(qprecovery.DeviceUp{})
		case knows == qprecovery.ViewDown && v.GaveUp:
			r.step(qprecovery.DeviceGaveUp{})
		default:
			r.seen = v.Session
			return v
		}
	}
}

// ErrNothing reports that there is nothing to reset, and nothing to send with.
var ErrNothing = errors.New("the interface has no queue pair")

var errClosing = errors.New("it is being closed")

// ErrUnderWay reports that the current recovery already does what was requested, or more.
var ErrUnderWay = errors.New("a recovery of the interface is already under way; 'ipoibd events' shows how it ends")

// Reset runs a rung on an operator's command: RungResetQP or RungRebuildCQ. It returns once
// the rung has begun. Any goroutine may call it. Errors: ErrNothing with the reason,
// ErrUnderWay, the error of ctx, or why the interface has ended.
func (f *Iface) Reset(ctx context.Context, rung qprecovery.Rung) error {
	var refused error
	err := f.do(ctx, func() {
		if f.rec.att == nil {
			refused = f.rec.nothing()
			return
		}
		ev := qprecovery.Order{Rung: rung}
		if !f.rec.ladder.Takes(ev) {
			refused = ErrUnderWay
		}
		f.rec.step(ev)
	})
	return cmp.Or(err, refused)
}

// nothing is ErrNothing with the reason.
func (r *recovery) nothing() error {
	_, why := r.target(r.dev.View())
	return fmt.Errorf("%w: %w", ErrNothing, cmp.Or(why, r.err, errClosing))
}
