package guard

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"ipoibd/hca"
)

// Failure is the error that all calls return in the failed state (R19). It wraps only
// [hca.ErrIO].
type Failure struct {
	Cause error // of the first failure; never nil
}

func (f *Failure) Error() string {
	if errors.Is(f.Cause, hca.ErrIO) {
		return f.Cause.Error() // the text contains ErrIO already
	}
	return fmt.Sprintf("%v: %v", hca.ErrIO, f.Cause)
}

func (f *Failure) Unwrap() error { return hca.ErrIO }

var (
	errNoCause     = errors.New("failed by its owner")
	errDeviceFatal = errors.New("event DEVICE_FATAL")
)

// Err returns the [Failure], or nil if the device is healthy.
func (d *Device) Err() error {
	if f := d.failure.Load(); f != nil {
		return f
	}
	return nil
}

// Hung reports whether a call that waits for no peer did not return in time. Close of such a device, once
// it has failed, is likely to wait in vain.
func (d *Device) Hung() bool { return d.hung.Load() }

// Fail moves the device to the failed state. Only the first call has an effect. Fail does
// not block, and any goroutine may call it.
func (d *Device) Fail(cause error) {
	if cause == nil {
		cause = errNoCause
	}
	if !d.failure.CompareAndSwap(nil, &Failure{Cause: cause}) {
		return
	}
	close(d.dead)
	d.countZombie()
	d.mu.Lock()
	cqs := slices.Collect(maps.Keys(d.cqs))
	d.mu.Unlock()
	for _, c := range cqs {
		c.inner.Wake()
	}
}

// note fails the device if err wraps ErrIO.
func (d *Device) note(err error) {
	if errors.Is(err, hca.ErrIO) {
		d.Fail(err)
	}
}

// outcome returns the error of a post or of a method of a CQ: the Failure if err is fatal
// or if the device has failed in the meantime, else err.
func (d *Device) outcome(err error) error {
	if err == nil {
		return nil
	}
	if d.note(err); d.Err() != nil {
		return d.Err()
	}
	return err
}

// wrap adds the verb and the device to an error.
func (d *Device) wrap(verb string, err error) error {
	return &hca.VerbError{Verb: verb, On: d.attr.Name, Err: err}
}
