package device

import (
	"context"

	"ipoibd/qprecovery"
)

// Lister lists the HCAs that are there: all of them, among which the device may be, or
// the present instances of the device alone. A list is not changed once it was handed
// out.
type Lister interface {
	// Watch sends the list, at once and after each change, even one that was undone
	// since; of lists that were not received only the last one is kept. The channel is
	// closed when ctx ends.
	Watch(ctx context.Context) <-chan []qprecovery.Identity
	// List returns the list as of now. It may block, until ctx ends.
	List(ctx context.Context) []qprecovery.Identity
}

// refresh reads the list, on a goroutine of its own.
func (o *owner) refresh(op uint64) {
	o.work.Go(func() {
		ids := o.cfg.List.List(o.ctx)
		o.tell(func(o *owner) { o.step(qprecovery.Listed{Op: op, Devices: ids}) })
	})
}
