package device

import (
	"context"
	"errors"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Why an operator's command is refused, or not carried out.
var (
	// ErrNotOpen: the device was never open and is absent, so there is nothing to reset.
	ErrNotOpen = errors.New("device has not been opened yet; 'ipoibd devices' shows whether it is present")
	// ErrSuspended: the device is suspended. While it is, views report this error as the
	// reason why there is no session.
	ErrSuspended = errors.New("device is suspended; 'ipoibd resume' opens it again")
	// ErrResumed: the device was resumed before it was closed.
	ErrResumed = errors.New("device was resumed before it could be closed")
	// ErrOpen: there is nothing to recover.
	ErrOpen = errors.New("device is open, so there is nothing to recover; 'ipoibd reset device' resets it")
	// ErrUnderWay: a recovery is under way and already does what was requested.
	ErrUnderWay = errors.New("a recovery of the device is already under way; 'ipoibd events' shows how it ends")
	// ErrGivenUp: the device was given up, so it is closed already.
	ErrGivenUp = errors.New("device was given up, so there is nothing to suspend")
	// ErrNotSuspended: the device was not suspended.
	ErrNotSuspended = errors.New("device is not suspended")
	// ErrEnded: the device's Run has ended.
	ErrEnded = errors.New("device has ended")
)

// Reset requests a reset of the device, or, if it is absent, an immediate search for it. It
// returns once the request is accepted. Requests during a reset are merged into it (R15).
// Errors: [ErrNotOpen] if it was never open and is absent; [ErrSuspended], [ErrEnded], the
// error of ctx.
func (d *Device) Reset(ctx context.Context) error { return d.command(ctx, qprecovery.DoReset) }

// Recover retries a device that was given up, at once and then for as long as Run usually
// waits for a device. Errors: [ErrOpen], [ErrUnderWay], [ErrSuspended], [ErrEnded], the
// error of ctx.
func (d *Device) Recover(ctx context.Context) error { return d.command(ctx, qprecovery.DoRecover) }

// Suspend closes the device once its users have released it, and returns when it is
// closed (R26). It is idempotent. Errors: [ErrGivenUp], [ErrResumed], [ErrEnded], or the
// error of ctx, after which the device is still closed as soon as possible.
func (d *Device) Suspend(ctx context.Context) error { return d.command(ctx, qprecovery.DoSuspend) }

// Resume undoes Suspend. It returns once Run has begun to open the device or to wait for
// it. Errors: [ErrNotSuspended], [ErrEnded], the error of ctx.
func (d *Device) Resume(ctx context.Context) error { return d.command(ctx, qprecovery.DoResume) }

// results maps the answers of the machine to errors.
var results = map[qprecovery.Result]error{
	qprecovery.ResultDone:         nil,
	qprecovery.ResultNotOpen:      ErrNotOpen,
	qprecovery.ResultOpen:         ErrOpen,
	qprecovery.ResultUnderWay:     ErrUnderWay,
	qprecovery.ResultSuspended:    ErrSuspended,
	qprecovery.ResultNotSuspended: ErrNotSuspended,
	qprecovery.ResultResumed:      ErrResumed,
	qprecovery.ResultGivenUp:      ErrGivenUp,
}

// command passes an operator's command to the machine and returns its answer.
func (d *Device) command(ctx context.Context, do qprecovery.Do) error {
	done := make(chan error, 1)
	order := func(o *owner) { o.command(do, done) }
	for calls := d.calls; ; {
		select {
		case calls <- order:
			calls = nil // once
		case err := <-done:
			return err
		case <-d.ended:
			return ErrEnded
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Status is the state of a device as shown to an operator.
type Status struct {
	qprecovery.DeviceStatus
	Attr        *hca.DeviceAttr // of the last opening; nil before the first one; read-only
	LastError   error           // why the last opening or reset failed, or what the first opening waits for
	Coordinator resetlock.Status
	Sharers     []string // other processes that have the device open
}

// Status returns the state that Run has published. Any goroutine may call it; it does not
// wait for Run.
func (d *Device) Status() Status {
	s := d.public.last.Load().status
	if c := d.public.locks.Load(); c != nil {
		s.Sharers = (*c).Sharers()
	}
	return s
}
