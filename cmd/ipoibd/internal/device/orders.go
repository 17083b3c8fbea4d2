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
	ErrSuspended = errors.New("device is suspended; resume it first")
	// ErrResumed: the device was resumed before it was closed.
	ErrResumed = errors.New("device was resumed meanwhile")
	// ErrEnded: the device's Run has ended.
	ErrEnded = errors.New("device has ended")
)

// Reset orders a reset of the device, or hastens what is under way; it returns
// once that is taken up. Errors: [ErrNotOpen], after which it is tried at once;
// [ErrSuspended], [ErrEnded], that of ctx.
func (d *Device) Reset(ctx context.Context) error {
	return d.order(ctx, qprecovery.Order{Rung: qprecovery.RungDevice}, ErrNotOpen)
}

// Recover has a device that was given up waited for again, with a try at once. It
// is harmless where nothing is wrong. Errors: [ErrSuspended], [ErrEnded], that of
// ctx.
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
			o.step(ev)
			done <- nil
		}
	})
}

// Suspend ends the use of the device, its users first, and returns when it is
// closed (R26). Harmless when repeated. Errors: [ErrResumed], [ErrEnded], that of
// ctx; the device is then closed later.
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
// is taken up. Errors: [ErrEnded], that of ctx.
func (d *Device) Resume(ctx context.Context) error {
	return d.ask(ctx, func(o *owner, done chan<- error) {
		if o.ladder == nil {
			o.resumeStart()
		} else {
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
