package guard

import (
	"errors"
	"fmt"

	"ipoibd/hca"
)

// ErrStuck says that a verb did not return in time; its thread is abandoned. It
// is no [hca.ErrTimeout], which is a silent peer.
var ErrStuck = fmt.Errorf("%w: verb did not return", hca.ErrIO)

// Failure is why a device is in the failed state, and what everything answers
// from then on (R19). It wraps [hca.ErrIO] alone.
type Failure struct {
	Cause error // of the first failure; never nil
}

func (f *Failure) Error() string {
	if errors.Is(f.Cause, hca.ErrIO) {
		return f.Cause.Error() // it says so itself
	}
	return fmt.Sprintf("%v: %v", hca.ErrIO, f.Cause)
}

func (f *Failure) Unwrap() error { return hca.ErrIO }

var (
	errNoCause     = errors.New("failed by its owner")
	errDeviceFatal = errors.New("event DEVICE_FATAL")
)

// Err returns the [Failure], nil while the device is healthy.
func (d *Device) Err() error {
	if f := d.failure.Load(); f != nil {
		return f
	}
	return nil
}

// Fail moves the device to the failed state; only the first call counts. It
// returns at once, and may be called from any goroutine.
func (d *Device) Fail(cause error) {
	if cause == nil {
		cause = errNoCause
	}
	if !d.failure.CompareAndSwap(nil, &Failure{Cause: cause}) {
		return
	}
	close(d.dead)
	d.rise()
	for _, c := range d.registry.openCQs(&d.mu) {
		c.inner.Wake()
	}
}

// note fails the device when err says that it is gone, and returns err.
func (d *Device) note(err error) error {
	if err != nil && errors.Is(err, hca.ErrIO) {
		d.Fail(err)
	}
	return err
}

// wrap says which verb an error is of.
func (d *Device) wrap(verb string, err error) error {
	return &hca.VerbError{Verb: verb, On: d.attr.Name, Err: err}
}
