package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/qprecovery"
)

// ErrUnsettled means that the device cannot be handed over now, but perhaps in a moment.
var ErrUnsettled = errors.New("cannot be handed over now")

// Parked is a device whose Run waits until Release, because another process may take over the device and its
// users. Meanwhile the session does not end, and is not reset.
type Parked struct {
	Ladder  qprecovery.HandedDevice
	Release func() // to be called once
}

// CanPark returns nil if Park would stop Run now. It stops nothing. It returns the same errors as Park.
func (d *Device) CanPark(ctx context.Context) error {
	_, err := d.park(ctx, func() {})
	return err
}

// Park makes Run wait. Errors: ErrUnsettled with the reason, ErrEnded, the error of ctx.
func (d *Device) Park(ctx context.Context) (*Parked, error) {
	released := make(chan struct{})
	h, err := d.park(ctx, func() { <-released })
	return &Parked{h, func() { close(released) }}, err
}

// park calls wait on Run's goroutine after it has answered, unless the device is on its way to another state.
func (d *Device) park(ctx context.Context, wait func()) (h qprecovery.HandedDevice, err error) {
	answered := make(chan struct{})
	ask := func(o *owner) {
		var ok bool
		if h, ok = o.machine.HandOver(time.Now()); !ok {
			err = fmt.Errorf("%w: the device is being opened, closed or reset", ErrUnsettled)
			wait = func() {}
		}
		close(answered)
		wait()
	}
	select {
	case d.calls <- ask:
		<-answered
		return h, err
	case <-d.ended:
		return h, ErrEnded
	case <-ctx.Done():
		return h, ctx.Err()
	}
}

// Inherit makes Run take over the device of another process, and shows its state at once: Run may begin much later.
// It is called before Run.
func (d *Device) Inherit(h qprecovery.HandedDevice) {
	d.owner.machine = qprecovery.InheritDeviceLadder(time.Now(), d.owner.ladder(), h)
	d.owner.show()
}
