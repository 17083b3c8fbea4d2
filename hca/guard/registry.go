package guard

import (
	"sync"
	"sync/atomic"

	"ipoibd/hca"
)

// generations numbers the CQs and QPs of all guarded devices of this process.
var generations atomic.Uint32

// registry holds the open CQs and the IDs of CQs and QPs. Device.mu guards it.
type registry struct {
	cqs map[*CQ]struct{}
	ids map[hca.ObjectID]hca.ObjectID // from the backend's ID to the guard's
}

func (r *registry) init() {
	r.cqs = map[*CQ]struct{}{}
	r.ids = map[hca.ObjectID]hca.ObjectID{}
}

// newID returns the backend's ID with a unique generation (R20).
func newID(inner hca.ObjectID) hca.ObjectID {
	inner.Generation = generations.Add(1)
	return inner
}

func (r *registry) openCQs(mu *sync.Mutex) []*CQ {
	mu.Lock()
	defer mu.Unlock()
	out := make([]*CQ, 0, len(r.cqs))
	for c := range r.cqs {
		out = append(out, c)
	}
	return out
}

// translate returns the guard's ID for the backend's ID of an object. It returns false if the
// object no longer exists.
func (d *Device) translate(inner hca.ObjectID) (hca.ObjectID, bool) {
	if inner.Kind != hca.KindCQ && inner.Kind != hca.KindQP {
		return inner, true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	id, ok := d.registry.ids[inner]
	return id, ok
}
