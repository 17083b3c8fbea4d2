package device

import (
	"context"
	"errors"

	"ipoibd/qprecovery"
)

// Errors of the operator's orders.
var (
	// ErrSuspended: not while the device is suspended.
	ErrSuspended = errors.New("device is suspended; resume it first")
	// ErrEnded: the device's Run has ended.
	ErrEnded = errors.New("device has ended")
)

// Reset orders a reset of the device, and returns once it is taken up.
func (d *Device) Reset(context.Context) error {
	d.Ask(qprecovery.ReasonOperator)
	return nil
}

// Recover orders the wait for the device to begin again after a give-up, with a
// try at once.
func (d *Device) Recover(context.Context) error { return nil }

// Suspend ends the use of the device, its users first; it returns when the device
// is closed. Harmless when repeated.
func (d *Device) Suspend(context.Context) error { return ErrEnded }

// Resume undoes Suspend; it returns once the opening is taken up.
func (d *Device) Resume(context.Context) error { return ErrEnded }

// Status is what an operator may want to know of a device.
type Status struct {
	State   qprecovery.DeviceState
	Reason  qprecovery.Reason
	History []qprecovery.Record // oldest first, the one under way last
	Counts  qprecovery.Counts
}

// Status returns the state of recovery; any goroutine may ask.
func (d *Device) Status() Status { return Status{} }
