package guard

import (
	"errors"

	"ipoibd/hca"
)

// life is the state of an object.
type life uint8

const (
	lifeOpen    life = iota
	lifeClosing      // closed for the caller, but not released by the backend
	lifeGone         // released by the backend
)

// object is the common part of all wrapped objects. Device.mu guards the fields that
// change.
type object struct {
	dev     *Device
	verb    string // the verb that releases it
	close   func() error
	onGone  func() // called under Device.mu when the backend has released it; may be nil
	parents []*object

	life     life
	uses     int  // children and current verbs of this object in the backend
	deferred bool // must be closed in the backend once uses is 0
}

// register counts an object as a child of its parents.
func (o *object) register() {
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
		d.queueRelease(o)
	}
}

// beginRelease moves an open object to closing.
func (o *object) beginRelease() bool {
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

// gone records that the backend has released o. Idempotent.
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

// release closes o for the caller, and in the backend now or, in the failed state, later.
func (o *object) release() error {
	if !o.beginRelease() {
		return nil
	}
	f := func() (struct{}, error) { return struct{}{}, o.close() }
	a := call(o.dev, verb{name: o.verb}, f, func(_ struct{}, err error) { o.answeredLate(err) })
	switch a.fate {
	case fateRefused: // the device has failed
		o.deferRelease()
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

// answered handles the result of a release in the backend. ErrIO counts as success, because
// the device is gone.
func (o *object) answered(err error) error {
	switch {
	case err == nil || errors.Is(err, hca.ErrIO):
		o.gone()
		return nil
	case o.dev.Err() != nil:
		o.deferRelease()
		return nil
	}
	o.reopen()
	return err
}

// answeredLate handles a result that comes after the caller has returned. The caller
// considers the object closed, so it is not reopened.
func (o *object) answeredLate(err error) {
	if err == nil || errors.Is(err, hca.ErrIO) {
		o.gone()
		return
	}
	o.deferRelease()
}

// deferRelease leaves the release in the backend to releaseQueued.
func (o *object) deferRelease() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	o.deferred = true
	o.dev.queueRelease(o)
}
