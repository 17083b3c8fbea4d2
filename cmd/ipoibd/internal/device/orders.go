package device

import (
	"context"
	"errors"
	"time"

	"ipoibd/cmd/ipoibd/internal/coordinator"
	"ipoibd/qprecovery"
)

// Why an order is not taken, or not carried out.
var (
	// ErrNotOpen: there is nothing to reset before the device was open once.
	ErrNotOpen = errors.New("device is not open yet")
	// ErrSuspended: not while the device is suspended. It is also why there is no
	// session meanwhile.
	ErrSuspended = errors.New("device is suspended; 'ipoibd resume' opens it again")
	// ErrResumed: the device was resumed before it was closed.
	ErrResumed = errors.New("device was resumed meanwhile")
	// ErrOpen: there is nothing to recover.
	ErrOpen = errors.New("device is open, so there is nothing to recover; 'ipoibd reset device' resets it")
	// ErrUnderWay: the recovery under way already does what was ordered.
	ErrUnderWay = errors.New("a recovery of the device is already under way; 'ipoibd events' shows how it ends")
	// ErrGivenUp: a device that was given up is closed already.
	ErrGivenUp = errors.New("device was given up, so there is nothing to suspend")
	// ErrNotSuspended: the device was not suspended.
	ErrNotSuspended = errors.New("device is not suspended")
	// ErrEnded: the device's Run has ended.
	ErrEnded = errors.New("device has ended")
)

// Reset orders a reset of the device. If the daemon waits for the device, Reset orders
// a try at once instead. It returns once the order is accepted; several orders during a
// reset count as one (R15). Errors: [ErrNotOpen] before the first opening, which is then
// tried at once; [ErrSuspended], [ErrEnded], that of ctx.
func (d *Device) Reset(ctx context.Context) error {
	err := d.order(ctx, qprecovery.Order{Rung: qprecovery.RungDevice}, ErrNotOpen)
	if errors.Is(err, ErrUnderWay) {
		return nil
	}
	return err
}

// Recover starts the wait for a device that was given up again, with a try at once. A
// device that is waited for, or left alone after too many failures, is tried at once as
// well. Errors: [ErrOpen], [ErrUnderWay], [ErrSuspended], [ErrEnded], that of ctx.
func (d *Device) Recover(ctx context.Context) error { return d.order(ctx, qprecovery.Recover{}, nil) }

// order passes an event to the ladder. Before the first opening there is no ladder:
// then order tries to open the device at once and answers early.
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

// Suspend closes the device once its users have released it, and returns when it is
// closed (R26). It is idempotent. Errors: [ErrGivenUp]; [ErrResumed], [ErrEnded], that
// of ctx, in which case the device may still be open.
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

// Resume undoes Suspend, and returns once the opening of the device, or the wait for
// it, has begun. Errors: [ErrNotSuspended], [ErrEnded], that of ctx.
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
	Coordinator coordinator.Status
}

// Status returns the state of recovery; any goroutine may ask.
func (d *Device) Status() Status {
	s := *d.status.Load()
	if c := d.shared.Load(); c != nil {
		s.Coordinator = c.Status()
	}
	return s
}
