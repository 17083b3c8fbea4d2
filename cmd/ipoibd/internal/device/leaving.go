package device

import (
	"context"
	"fmt"
	"strings"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// closePatience is how long closing an HCA in error state is waited for: what
// hangs in it returns only when it is reset.
const closePatience = 20 * time.Millisecond

// leaving is a session on its way out.
type leaving struct {
	s         *Session      // nil: nothing was open
	op        uint64        // of the Drop; 0: it is answered
	reset     bool          // the Drop wants a reset, too
	outcome   reset.Outcome // of that
	closed    bool
	abandoned bool      // its users are waited for no more
	patience  time.Time // when they are abandoned; zero: the coordinator says it
}

// drop lets the device go. In a reset the coordinator says when users are waited
// for no more; else the grace period does.
func (o *owner) drop(a qprecovery.Drop) {
	o.log.Warn("letting the device go", "reason", a.Reason.String())
	if !gentle(a.Reason) {
		o.fail(fmt.Errorf("%w: %s", hca.ErrIO, a.Reason))
	}
	if o.leaving == nil {
		o.letGo()
	}
	l := o.leaving
	l.op, l.reset, l.outcome, l.patience = a.Op, wantsReset(a.Reason) && !o.clean, reset.OutcomeNone, time.Time{}
	switch {
	case !l.reset:
		l.patience = time.Now().Add(o.cfg.Grace)
	case o.pending.id == 0:
		o.shared.Load().Request()
	}
}

// fail moves what is open, or is being let go, to the error state.
func (o *owner) fail(cause error) {
	if o.session != nil {
		o.session.Fail(cause)
	}
	if o.leaving != nil && o.leaving.s != nil {
		o.leaving.s.Fail(cause)
	}
}

// wantsReset: what is gone cannot be reset, and what is to rest need not.
func wantsReset(r qprecovery.Reason) bool {
	return r != qprecovery.ReasonRemoved && r != qprecovery.ReasonSuspended
}

// gentle: the device works, so its users may leave it in an orderly way.
func gentle(r qprecovery.Reason) bool {
	return r == qprecovery.ReasonOperator || r == qprecovery.ReasonSuspended
}

// letGo retires the session, and closes it once its users have let go.
func (o *owner) letGo() {
	l := &leaving{s: o.session, closed: o.session == nil}
	o.leaving, o.session, o.ports = l, nil, nil
	if l.closed {
		return
	}
	l.s.retire()
	o.work.Go(func() {
		o.closeSession(l.s)
		o.tell(func(*owner) { l.closed = true })
	})
}

func (o *owner) closeSession(s *Session) {
	select {
	case <-s.idle:
	case <-s.abandoned:
	}
	s.unfollow()
	done := make(chan struct{})
	o.work.Go(func() { defer close(done); o.closeHCA(s) })
	var enough <-chan time.Time
	if s.guard.Err() != nil {
		enough = time.After(closePatience)
	}
	select {
	case <-done:
	case <-enough:
	}
}

// closeHCA closes the context. One that is busy, or does not answer, is closed in
// the error state, in which that cannot fail.
func (o *owner) closeHCA(s *Session) {
	err := s.Close()
	if err == nil {
		return
	}
	o.log.Error("cannot close the device; leaving it in error state", "err", err)
	s.Fail(err)
	_ = s.Close() // it is in error state
}

// finishLeaving answers the Drop when it is done; true when it did.
func (o *owner) finishLeaving() bool {
	l := o.leaving
	if l == nil {
		return false
	}
	class, over := l.result()
	if l.closed && (over || l.op == 0) {
		o.leaving = nil
	}
	if !over || l.op == 0 {
		return false
	}
	op := l.op
	l.op = 0
	o.step(qprecovery.Done{Op: op, Class: class})
	return true
}

// result says whether the Drop is over, and how. A zombie that no reset has freed
// the device of holds it still; where it is others who hold it, or the reset failed,
// it can be opened again as it is.
func (l *leaving) result() (class qprecovery.Class, over bool) {
	switch {
	case l.reset && l.outcome == reset.OutcomeTimeout:
		return qprecovery.ClassStuck, true
	case l.reset && l.outcome == reset.OutcomeHeld && l.closed:
		return qprecovery.ClassTransient, true
	case l.reset && (l.outcome == reset.OutcomeFailed || l.outcome == reset.OutcomeDenied) && l.closed:
		return qprecovery.ClassDeviceError, true
	case l.reset && l.outcome > reset.OutcomeDone:
		return qprecovery.ClassRefused, true
	case !l.closed, l.reset && l.outcome == reset.OutcomeNone:
		return qprecovery.ClassSuccess, false
	case !l.reset && l.abandoned:
		return qprecovery.ClassStuck, true
	default:
		return qprecovery.ClassSuccess, true
	}
}

// abandon leaves the users behind that have not let go: their handles are zombies.
func (o *owner) abandon() {
	l := o.leaving
	if l == nil || l.closed || l.abandoned {
		return
	}
	l.abandoned, l.patience = true, time.Time{}
	o.note(late(l.s.usedBy()))
	l.s.abandon()
}

// late names who has not let go of a session in time.
func late(users []string) string {
	if len(users) == 0 {
		return "closing it takes too long; going on without"
	}
	return "not let go in time by " + strings.Join(users, ", ") + "; going on without"
}

// reset is what the coordinator calls once every other process has released the device.
func (d *Device) reset(ctx context.Context, how reset.Reset) error {
	if how.Abandon {
		err := d.ask(ctx, func(o *owner, done chan<- error) { o.abandon(); done <- nil })
		if err != nil {
			return err
		}
	}
	switch {
	case how.Complete && d.cfg.Complete != nil:
		return d.cfg.Complete(ctx)
	case d.cfg.Reset != nil:
		return d.cfg.Reset(ctx)
	}
	return nil
}

// resetEnded takes the outcome of a reset.
func (o *owner) resetEnded(end reset.Ended) {
	if end.Outcome != reset.OutcomeDone {
		o.note(describe(end))
	}
	if o.leaving != nil {
		o.leaving.outcome = end.Outcome
	}
}

// describe names who holds the device (R16).
func describe(end reset.Ended) string {
	text := "not reset: " + end.Outcome.String()
	if end.Detail != "" {
		text += ": " + end.Detail
	}
	return text
}
