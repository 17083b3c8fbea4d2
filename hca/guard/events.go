package guard

import (
	"context"
	"sync/atomic"

	"ipoibd/hca"
)

// events is what NextEvent remembers.
type events struct {
	fatalTold atomic.Bool // DEVICE_FATAL was delivered
}

// NextEvent implements [hca.Device]. DEVICE_FATAL is the last event.
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	for {
		if d.Err() != nil {
			return d.lastEvent()
		}
		ev, err := d.backendEvent(ctx)
		switch {
		case err == nil:
			if ev, ok := d.review(ev); ok {
				return ev, nil
			}
		case ctx.Err() != nil:
			return hca.AsyncEvent{}, ctx.Err()
		default:
			_ = d.note(err)
			if d.Err() == nil {
				return hca.AsyncEvent{}, err
			}
		}
	}
}

// lastEvent is the answer of the failed state.
func (d *Device) lastEvent() (hca.AsyncEvent, error) {
	switch {
	case d.closed():
		return hca.AsyncEvent{}, d.wrap("get_async_event", hca.ErrClosed)
	case d.events.fatalTold.Swap(true):
		return hca.AsyncEvent{}, d.wrap("get_async_event", d.Err())
	}
	return hca.AsyncEvent{Type: hca.EventDeviceFatal, On: hca.ObjectID{Kind: hca.KindDevice}}, nil
}

// review names the object of an event as the guard does, and acts on
// DEVICE_FATAL; false for an event about an object that is gone.
func (d *Device) review(ev hca.AsyncEvent) (hca.AsyncEvent, bool) {
	id, ok := d.translate(ev.On)
	if !ok {
		d.counts.staleEvents.Add(1)
		return ev, false
	}
	ev.On = id
	if ev.Type == hca.EventDeviceFatal {
		d.Fail(errDeviceFatal)
		return ev, !d.events.fatalTold.Swap(true)
	}
	return ev, true
}

// backendEvent waits for an event of the backend, as long as ctx lives and the
// device is healthy. A backend that does not heed ctx is abandoned after
// VerbTimeout.
func (d *Device) backendEvent(ctx context.Context) (hca.AsyncEvent, error) {
	const name = "get_async_event"
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	c := newFlight[hca.AsyncEvent]()
	d.mu.Lock()
	d.inside++
	d.mu.Unlock()
	go func() {
		ev, err := d.inner.NextEvent(inner)
		c.land(d, answer[hca.AsyncEvent]{val: ev, err: err})
		d.mu.Lock()
		defer d.mu.Unlock()
		d.leave()
	}()
	var a answer[hca.AsyncEvent]
	select {
	case a = <-c.answered:
	case <-d.dead:
		a = c.abandon(d, name, d.Err())
	case <-ctx.Done():
		p := newPatience(d.opts.VerbTimeout, 0)
		defer p.stop()
		a = c.wait(d, name, p, d.dead)
	}
	return a.val, a.err
}
