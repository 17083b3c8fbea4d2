package guard

import (
	"errors"

	"ipoibd/hca"
)

// life is how far an object's release is.
type life uint8

const (
	lifeOpen    life = iota
	lifeClosing      // closed for the caller; the backend has it still
	lifeGone
)

// object is what every wrapped object is in the guard's books. Device.mu guards
// all that changes.
type object struct {
	dev     *Device
	verb    string // that releases it
	close   func() error
	onGone  func() // under Device.mu, when the backend has it no more; may be nil
	parents []*object

	life life
	uses int  // children that the backend has, and verbs under way
	bury bool // to be closed in the backend once uses is 0
}

// born registers an object with its parents.
func (o *object) born() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	hold(o.parents)
}

func hold(os []*object) {
	for _, o := range os {
		o.uses++
	}
}

// drop undoes hold. Device.mu is held.
func (d *Device) drop(os []*object) {
	for _, o := range os {
		o.uses--
		d.undertake(o)
	}
}

// begin moves an open object to closing.
func (o *object) begin() bool {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	if o.life != lifeOpen {
		return false
	}
	o.life = lifeClosing
	return true
}

func (o *object) reopen() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	o.life = lifeOpen
}

// gone notes that the backend released o. Harmless when repeated.
func (o *object) gone() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	if o.life == lifeGone {
		return
	}
	o.life = lifeGone
	if o.onGone != nil {
		o.onGone()
	}
	o.dev.drop(o.parents)
}

// release closes o as the state of the device has it.
func (o *object) release() error {
	if !o.begin() {
		return nil
	}
	f := func() (struct{}, error) { return struct{}{}, o.close() }
	a := call(o.dev, verb{name: o.verb}, f, func(_ struct{}, err error) { o.answeredLate(err) })
	switch a.fate {
	case fateRefused: // the device has failed
		o.later()
		return nil
	case fateAbandoned:
		if o.dev.Err() != nil {
			return nil
		}
		return a.err
	case fateAnswered:
	}
	return o.answered(a.err)
}

// answered takes the backend's answer to a release. One that says that the device
// is gone is as good as success.
func (o *object) answered(err error) error {
	switch {
	case err == nil || errors.Is(err, hca.ErrIO):
		o.gone()
		return nil
	case o.dev.Err() != nil:
		o.later()
		return nil
	}
	o.reopen()
	return err
}

// answeredLate takes an answer of which the caller heard nothing any more: for it
// the object is closed, so it stays so.
func (o *object) answeredLate(err error) {
	if err == nil || errors.Is(err, hca.ErrIO) {
		o.gone()
		return
	}
	o.later()
}

// later leaves the release in the backend to the undertaker.
func (o *object) later() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	o.bury = true
	o.dev.undertake(o)
}
