package guard

import (
	"context"
	"sync/atomic"

	"ipoibd/hca"
)

// events is the state of NextEvent.
type events struct {
	fatalDelivered atomic.Bool // DEVICE_FATAL was delivered
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

// lastEvent returns the result of NextEvent in the failed state.
func (d *Device) lastEvent() (hca.AsyncEvent, error) {
	switch {
	case d.closed():
		return hca.AsyncEvent{}, d.wrap("get_async_event", hca.ErrClosed)
	case d.events.fatalDelivered.Swap(true):
		return hca.AsyncEvent{}, d.wrap("get_async_event", d.Err())
	}
	return hca.AsyncEvent{Type: hca.EventDeviceFatal, On: hca.ObjectID{Kind: hca.KindDevice}}, nil
}

// review translates the object of an event to the guard's ID, and fails the device on
// DEVICE_FATAL. It returns false if the event must not be delivered: its object no longer
// exists, or it repeats DEVICE_FATAL.
func (d *Device) review(ev hca.AsyncEvent) (hca.AsyncEvent, bool) {
	id, ok := d.translate(ev.On)
	if !ok {
		d.counts.staleEvents.Add(1)
		return ev, false
	}
	ev.On = id
	if ev.Type == hca.EventDeviceFatal {
		d.Fail(errDeviceFatal)
		return ev, !d.events.fatalDelivered.Swap(true)
	}
	return ev, true
}

// backendEvent waits for an event of the backend until ctx ends or the device fails. If the
// backend ignores the end of ctx, the call is abandoned after VerbTimeout.
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
