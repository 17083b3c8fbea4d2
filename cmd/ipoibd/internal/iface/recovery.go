package iface

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/endpoint"
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
	log     *slog.Logger
	journal *journal.Journal
	fabric  *fabric
	lanes   *lanes
	events  []any // for Run: comes, attached, up, detached, tooLong

	setCarrier func(on bool, then func(error)) // of the host's side

	ladder  ladder
	actions []qprecovery.Action
	later   []func() // work caused by actions, for after all actions of their step

	seen    *device.Session // of the view that the ladder knows; nil: none
	aim     target          // of retry
	retry   backoff
	err     error     // why not up
	lastErr error     // the last failure, even if it is over
	stale   time.Time // when to begin to drop the host's frames; zero: never, or it has begun
	pumps   backoff   // before restarting pumps that ended without a fault
	left    bool      // the carrier and the host's frames belong to another process
}

// The events of a recovery. Run passes them on to the host's side and to the peer table.
type (
	comes struct{} // an attachment is being opened
	// attached: there is another attachment, or its address or its plan has changed. Then goes on once the others
	// know that; nil: with nothing.
	attached struct {
		isNew, newPlan bool
		then           func()
	}
	up       struct{}
	detached struct{}            // the attachment is not used any more, and its handles will be closed
	tooLong  struct{ bytes int } // the port has refused a packet that its plan allows
)

func (r *recovery) tell(event any) { r.events = append(r.events, event) }

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
	at = earliest(at, r.retry.at, r.pumps.at, r.fabric.badClient.at, r.stale)
	if r.fabric.att != nil {
		rest := r.lanes.resting()
		for _, l := range r.lanes.all {
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
	if due(&r.fabric.badClient.at, now) {
		r.fabric.badClient.end()
	}
	if due(&r.stale, now) {
		r.lanes.discard(true)
	}
	if due(&r.pumps.at, now) && r.fabric.att != nil && r.ladder.State() == qprecovery.Healthy {
		r.flow()
	}
	rest := r.lanes.resting()
	for _, l := range r.lanes.all {
		if r.fabric.att != nil && !now.Before(l.deadline(now, rest)) {
			r.sample(l, now)
		}
	}
	r.step(qprecovery.Tick{})
}

// fault reports a fault to the ladder, and logs a request that failed.
func (r *recovery) fault(ev qprecovery.Fault) {
	if q := ev.Request; q != nil {
		r.log.Warn("work request failed", "status", q.Status.String(), "opcode", q.Opcode.String(),
			"bytes", q.SGList[0].Length, "lkey", q.SGList[0].LKey, "to", q.DestQPN.String(), "vendor_err", q.VendorErr)
		if q.Status == hca.WCLocLenErr && q.Opcode == hca.WCSend && r.fabric.att != nil {
			r.tell(tooLong{int(q.SGList[0].Length) - ipoib.HeaderLen})
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
		r.log.Info("recovery", "state", now.String(), "was", was.String(), "reason", r.ladder.Reason().String())
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
		r.fabric.dev.Ask(r.fabric.used, a.Reason)
	case qprecovery.HoldTraffic: // messages from the fabric are still delivered
		r.hung(r.lanes.hold())
	case qprecovery.ReleaseTraffic:
		r.flow()
	case qprecovery.CarrierDown, qprecovery.CarrierUp:
		on := a == qprecovery.Action(qprecovery.CarrierUp{})
		r.log.Info("carrier", "on", on)
		if on {
			r.raiseCarrier()
		} else {
			r.dropCarrier()
			r.beginStale(time.Now())
		}
	case qprecovery.Entered:
		r.journal.Add(report.Entered(r.fabric.name, a))
	case qprecovery.Ended:
		r.journal.Add(report.Ended(r.fabric.name, a))
	}
}

// raiseCarrier raises the carrier. An interface that cannot have one starts again.
func (r *recovery) raiseCarrier() {
	a := r.fabric.att
	r.setCarrier(true, func(err error) {
		if err != nil && r.fabric.att == a {
			r.restart("no carrier", err)
		}
	})
}

// dropCarrier drops the carrier.
func (r *recovery) dropCarrier() {
	r.setCarrier(false, func(err error) {
		if err != nil && r.fabric.host.present {
			r.log.Error("cannot take the carrier down", "err", err)
		}
	})
}

// run runs a rung.
func (r *recovery) run(run qprecovery.Run) {
	switch run.Rung {
	case qprecovery.RungDevice:
		to, err := r.fabric.target(r.fabric.dev.View())
		if err == nil {
			err = r.come(to, run.Gen, run.Op)
		}
		switch {
		case err == nil:
		case errors.Is(err, errSessionEnded), to.session == nil && r.fabric.host.down == nil: // follow reports that next
			r.later = append(r.later, func() {
				ended := qprecovery.OfVerbError(qprecovery.VerbCreateQP, errSessionEnded)
				r.step(qprecovery.Done{Op: run.Op, Class: ended})
			})
		default: // recovery does not wait for a port that cannot be used
			r.later = append(r.later, func() { r.stop(err.Error()) })
		}
	case qprecovery.RungResumeQP:
		resume := func(a *attachment, _ *qprecovery.Done) error { return a.ep.Resume() }
		r.operate(run.Op, qprecovery.VerbModifyQP, resume, nil)
	case qprecovery.RungResetQP, qprecovery.RungRecreateQP, qprecovery.RungRebuildCQ:
		r.hung(r.lanes.halt())
		var self hca.UDDest
		var fast endpoint.FastPath
		r.operate(run.Op, qprecovery.VerbModifyQP, func(a *attachment, _ *qprecovery.Done) error {
			err := a.replace(r.lanes, run)
			if err == nil { // the next job may already change the endpoint when the result arrives
				self, fast = a.ep.Self(), a.fastPath()
			}
			return err
		}, func(done qprecovery.Done) {
			r.fabric.att.gen, r.fabric.att.self, r.fabric.att.fast = run.Gen, self, fast
			r.tell(attached{then: func() { r.step(done) }})
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
		r.log.Error("the device is frozen: probes on a fresh queue pair also went unanswered")
	case err == nil:
		r.log.Warn("freeze not proven: the device answers on a fresh queue pair, " +
			"or its wire is full, or its port is down")
	}
	return err
}

// operate runs an operation of the ladder on the worker, and then reports its result. verb
// is for an error that names none; succeeded reports a success in its place, and may be nil.
func (r *recovery) operate(
	op uint64, verb qprecovery.Verb, do func(*attachment, *qprecovery.Done) error, succeeded func(qprecovery.Done),
) {
	done := qprecovery.Done{Op: op}
	r.fabric.use(func(a *attachment) error { return do(a, &done) }, func(a *attachment, err error) {
		done.Class = qprecovery.OfVerbError(verb, err)
		r.failed(err)
		switch {
		case err == nil && succeeded != nil:
			succeeded(done)
			return
		case err != nil && verb == qprecovery.VerbModifyQP && r.fabric.moved(a, port.Plan.SameQP):
			r.fabric.requestResetIfStuck(err)
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
		r.log.Warn("a step of the recovery failed; recovery continues",
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
	ev := qprecovery.Fault{Gen: r.fabric.att.gen, Class: qprecovery.OfVerbError(qprecovery.VerbPollCQ, err)}
	r.later = append(r.later, func() { r.step(ev) })
}

// flow lets frames pass both ways.
func (r *recovery) flow() {
	if r.fabric.att != nil {
		r.stale = time.Time{}
		r.hung(r.lanes.start(r.fabric.att.gen))
		r.pumps.succeed(time.Now())
	}
}

// beginStale plans to drop the host's frames, because there is no carrier (R27): the kernel sends
// no new ones, and those that it has sent become stale in the TAP's queue.
func (r *recovery) beginStale(now time.Time) {
	if r.stale.IsZero() && !r.lanes.all[0].stale.running {
		r.stale = now.Add(staleAfter)
	}
}

// pumpsEnded handles pumps that have failed. An error means that ib0 is gone.
func (r *recovery) pumpsEnded() error {
	for _, l := range r.lanes.all {
		for _, p := range []*pump{&l.out, &l.in} {
			err := p.failure()
			switch {
			case err == nil:
				continue
			case errors.Is(err, link.ErrGone):
				return err
			}
			r.lastErr = err
			r.log.Warn("sending or receiving has stopped; restarting it", "err", err)
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
		v, knows := r.fabric.dev.View(), r.ladder.Device()
		switch {
		case knows == qprecovery.ViewUp && (v.Session == nil || r.seen != nil && r.seen != v.Session):
			r.seen = nil
			r.step(qprecovery.DeviceDown{})
		case knows != qprecovery.ViewUp && v.Session != nil && r.fabric.held() == nil && r.fabric.worker.busy == 0:
			r.fabric.follow(v)
			_, err := r.fabric.target(v)
			if r.joining(err) {
				return v
			}
			if err != nil { // recovery does not wait for a port that cannot be used
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

// joining reports whether the device is back, and the interface only awaits the subnet administrator's answer about the
// broadcast group: the memberships ended with the former session. The client reports an answer, or its absence, within
// 20 s. A port that a reset has taken down is not waited for.
func (r *recovery) joining(err error) bool {
	waits := r.ladder.State() == qprecovery.Detached || r.ladder.State() == qprecovery.GivenUp
	return waits && errors.Is(err, port.ErrNoGroup) && r.fabric.member.asking()
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
		if refused = f.rec.nothing(); refused != nil {
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

// nothing returns ErrNothing with the reason, or nil if there is a queue pair.
func (r *recovery) nothing() error {
	if r.fabric.att != nil {
		return nil
	}
	_, why := r.fabric.target(r.fabric.dev.View())
	return fmt.Errorf("%w: %w", ErrNothing, cmp.Or(why, r.err, errClosing))
}
