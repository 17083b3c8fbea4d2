package device

import (
	"context"
	"errors"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/qprecovery"
)

// Why an order is not taken, or not carried out.
var (
	// ErrNotOpen: there is nothing to reset before the device was open once.
	ErrNotOpen = errors.New("device is not open yet")
	// ErrSuspended: not while the device is suspended. It is also why there is no
	// session meanwhile.
	ErrSuspended = errors.New("device is suspended; resume it first")
	// ErrResumed: the device was resumed before it was closed.
	ErrResumed = errors.New("device was resumed meanwhile")
	// ErrOpen: nothing is to be recovered.
	ErrOpen = errors.New("device is open, so there is nothing to recover; 'ipoibd reset device' resets it")
	// ErrUnderWay: the recovery under way does what was ordered.
	ErrUnderWay = errors.New("a recovery of the device is under way already; the order adds nothing to it")
	// ErrGivenUp: what is not waited for needs no suspension.
	ErrGivenUp = errors.New("device was given up, so there is nothing to suspend")
	// ErrNotSuspended: there is nothing to resume.
	ErrNotSuspended = errors.New("device is not suspended")
	// ErrEnded: the device's Run has ended.
	ErrEnded = errors.New("device has ended")
)

// Reset orders a reset of the device, or a try at once where it is waited for; it
// returns once that is taken up. Several orders during a reset are one (R15). Errors:
// [ErrNotOpen], after which it is tried at once; [ErrSuspended], [ErrEnded], that of ctx.
func (d *Device) Reset(ctx context.Context) error {
	err := d.order(ctx, qprecovery.Order{Rung: qprecovery.RungDevice}, ErrNotOpen)
	if errors.Is(err, ErrUnderWay) {
		return nil
	}
	return err
}

// Recover has a device that was given up waited for again, with a try at once. Errors:
// [ErrOpen], [ErrUnderWay], [ErrSuspended], [ErrEnded], that of ctx.
func (d *Device) Recover(ctx context.Context) error { return d.order(ctx, qprecovery.Recover{}, nil) }

// order gives the ladder an event; where there is none yet, the answer is early.
func (d *Device) order(ctx context.Context, ev qprecovery.DeviceEvent, early error) error {
	return d.ask(ctx, func(o *owner, done chan<- error) {
		switch {
		case o.suspended():
			done <- ErrSuspended
		case o.ladder == nil:
			o.try()
			done <- early
		default:
			taken, state := o.ladder.Takes(ev), o.ladder.State()
			o.step(ev)
			switch {
			case taken:
				done <- nil
			case state == qprecovery.DeviceHealthy:
				done <- ErrOpen
			default:
				done <- ErrUnderWay
			}
		}
	})
}

// Suspend ends the use of the device, its users first, and returns when it is
// closed (R26). It is idempotent. Errors: [ErrGivenUp]; [ErrResumed], [ErrEnded], that
// of ctx, after which the device is closed later.
func (d *Device) Suspend(ctx context.Context) error {
	return d.ask(ctx, func(o *owner, done chan<- error) {
		o.suspends = append(o.suspends, done)
		if o.ladder == nil {
			o.suspendStart()
			return
		}
		o.step(qprecovery.Suspend{})
	})
}

// Resume undoes Suspend, and returns once the opening or the wait for the device
// is taken up. Errors: [ErrNotSuspended], [ErrEnded], that of ctx.
func (d *Device) Resume(ctx context.Context) error {
	return d.ask(ctx, func(o *owner, done chan<- error) {
		switch {
		case !o.suspended():
			done <- ErrNotSuspended
			return
		case o.ladder == nil:
			o.resumeStart()
		default:
			o.step(qprecovery.Resume{})
		}
		done <- nil
	})
}

// ask has Run call f, and waits for what f or somebody after it answers.
func (d *Device) ask(ctx context.Context, f func(o *owner, done chan<- error)) error {
	done := make(chan error, 1)
	select {
	case d.calls <- func(o *owner) { f(o, done) }:
	case <-d.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-done:
		return err
	case <-d.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// answerSuspends tells those who wait in Suspend.
func (o *owner) answerSuspends() {
	var err error
	switch {
	case o.rests() && !o.suspended():
		err = ErrGivenUp
	case o.rests():
	case o.suspended():
		return
	default:
		err = ErrResumed
	}
	for _, done := range o.suspends {
		done <- err
	}
	o.suspends = nil
}

// suspended reports whether the device is to be closed.
func (o *owner) suspended() bool {
	if o.ladder == nil {
		return o.starting.suspended
	}
	return o.ladder.Suspended()
}

// rests reports whether the device is closed and stays so.
func (o *owner) rests() bool {
	if o.ladder == nil {
		return o.starting.suspended && o.starting.cancel == nil
	}
	s := o.ladder.State()
	return s == qprecovery.DeviceSuspended || s == qprecovery.DeviceGivenUp
}

// Status is what an operator may want to know of a device.
type Status struct {
	State       qprecovery.DeviceState
	Reason      qprecovery.Reason   // why the state was entered
	NextTry     time.Time           // when a pause ends, or the device is looked for again; zero: no such thing
	GivesUp     time.Time           // when the wait for the device ends; zero: it is not waited for
	Suspended   bool                // between Suspend and Resume
	History     []qprecovery.Record // oldest first, the one under way last; read-only
	Counts      qprecovery.Counts
	Coordinator resetlock.Status
	Sharers     []string // other processes that have the device open
}

// Status returns the state of recovery; any goroutine may ask.
func (d *Device) Status() Status {
	s := *d.status.Load()
	if c := d.shared.Load(); c != nil {
		s.Coordinator, s.Sharers = c.Status(), c.Sharers()
	}
	return s
}
