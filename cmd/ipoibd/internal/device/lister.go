package device

import (
	"context"
	"slices"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Lister tells which HCAs are there: all of which one may be the device, or the
// present instances of the device alone.
type Lister interface {
	// Watch tells of the list, at once and after each change, be it undone again; of
	// values that nobody took only the last one is kept. The channel is closed when
	// ctx ends.
	Watch(ctx context.Context) <-chan []qprecovery.Identity
	// List returns the list as of now. It may block, until ctx ends.
	List(ctx context.Context) []qprecovery.Identity
}

// listed takes a new list: what is gone first, so that an instance that replaces
// another is an arrival.
func (o *owner) listed(ids []qprecovery.Identity) {
	before := o.present
	o.present = ids
	for _, id := range before {
		if !slices.ContainsFunc(ids, sameInstance(id)) {
			o.step(qprecovery.Removed{Index: id.Index})
		}
	}
	for _, id := range ids {
		if !slices.Contains(before, id) {
			o.step(qprecovery.Arrived{Identity: id})
		}
	}
}

// refreshed takes the list that was asked for when told lists had been told of;
// what is known already is told again. It may be older than one told of meanwhile:
// then it is asked for again.
func (o *owner) refreshed(ids []qprecovery.Identity, told int) {
	o.refreshing = false
	if told != o.told {
		o.refresh()
		return
	}
	before := o.present
	o.listed(ids)
	for _, id := range ids {
		if slices.Contains(before, id) {
			o.step(qprecovery.Arrived{Identity: id})
		}
	}
}

// sameInstance: one piece of hardware, plugged in once.
func sameInstance(a qprecovery.Identity) func(qprecovery.Identity) bool {
	return func(b qprecovery.Identity) bool { return a.Same(b) && a.Index == b.Index }
}

// refresh reads the list anew, on a goroutine of its own.
func (o *owner) refresh() {
	if o.cfg.List == nil || o.refreshing {
		return
	}
	o.refreshing = true
	told := o.told
	o.work.Go(func() {
		ids := o.cfg.List.List(o.ctx)
		o.tell(func(o *owner) { o.refreshed(ids, told) })
	})
}

// identify names an HCA that is open, with what the list knows of it.
func (o *owner) identify(s *Session, ports []hca.PortAttr) qprecovery.Identity {
	a := s.Attr()
	id := qprecovery.Identity{NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID, PCIAddr: a.PCIAddr, Parent: a.Parent, Name: a.Name}
	if len(ports) > 0 {
		id.PortGUID = ports[0].GUID
	}
	if i := slices.IndexFunc(o.present, id.Same); i >= 0 {
		return o.present[i]
	}
	return id
}
