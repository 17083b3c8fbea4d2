package guard

import (
	"errors"
	"sync/atomic"

	"ipoibd/hca"
)

// generations numbers the CQs and QPs of all guarded devices of this process.
var generations atomic.Uint32

// newID returns the backend's ID with a unique generation (R20).
func newID(inner hca.ObjectID) hca.ObjectID {
	inner.Generation = generations.Add(1)
	return inner
}

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

// release closes o for the caller, and in the backend now or, in the failed state, later.
// ErrIO of the backend counts as success, because the device is gone. Idempotent.
func (o *object) release() error {
	o.dev.mu.Lock()
	open := o.life == lifeOpen
	if open {
		o.life = lifeClosing
	}
	o.dev.mu.Unlock()
	if !open {
		return nil
	}
	a := call(o.dev, verb{name: o.verb}, func() (struct{}, error) { return struct{}{}, o.close() },
		func(_ struct{}, err error) { // the caller considers the object closed, so it is not reopened
			if err == nil || errors.Is(err, hca.ErrIO) {
				o.gone()
			} else {
				o.deferRelease()
			}
		})
	failed := o.dev.Err() != nil
	switch {
	case a.fate == fateAnswered && (a.err == nil || errors.Is(a.err, hca.ErrIO)):
		o.gone()
		return nil
	case failed && a.fate == fateAbandoned:
		return nil
	case failed:
		o.deferRelease()
		return nil
	case a.fate == fateAnswered:
		o.dev.mu.Lock()
		defer o.dev.mu.Unlock()
		o.life = lifeOpen
	}
	return a.err
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

// deferRelease leaves the release in the backend to releaseQueued.
func (o *object) deferRelease() {
	o.dev.mu.Lock()
	defer o.dev.mu.Unlock()
	o.deferred = true
	o.dev.queueRelease(o)
}

// queueRelease queues o if its deferred release can be done now. Device.mu is held.
func (d *Device) queueRelease(o *object) {
	if !o.deferred || o.uses > 0 {
		return
	}
	o.deferred = false
	if d.hanging > 0 {
		d.kept = append(d.kept, o)
		return
	}
	d.queue(o)
}

// queue closes o in the backend in the background. Device.mu is held.
func (d *Device) queue(o *object) {
	d.releases = append(d.releases, o)
	if !d.releasing {
		d.releasing = true
		go d.releaseQueued()
	}
}

// releaseQueued closes the queued objects, then ends. If the backend hangs in one release,
// the others wait, so that releases block only one thread.
func (d *Device) releaseQueued() {
	for {
		d.mu.Lock()
		if len(d.releases) == 0 {
			d.releasing = false
			d.mu.Unlock()
			return
		}
		o := d.releases[0]
		d.releases = d.releases[1:]
		d.mu.Unlock()
		if err := o.close(); err != nil {
			d.counts.releasesFailed.Add(1)
		}
		o.gone()
	}
}
