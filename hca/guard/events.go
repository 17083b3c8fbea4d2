package guard

import (
	"context"

	"ipoibd/hca"
)

// nextEvent is the verb of NextEvent.
const nextEvent = "get_async_event"

// NextEvent implements [hca.Device]. DEVICE_FATAL is the last event.
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	for {
		if err := d.Err(); err != nil {
			d.mu.Lock()
			closed := d.self.life != lifeOpen
			d.mu.Unlock()
			if closed {
				err = hca.ErrClosed
			} else if !d.fatalDelivered.Swap(true) {
				return hca.AsyncEvent{Type: hca.EventDeviceFatal, On: hca.ObjectID{Kind: hca.KindDevice}}, nil
			}
			return hca.AsyncEvent{}, d.wrap(nextEvent, err)
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
			if d.note(err); d.Err() == nil {
				return hca.AsyncEvent{}, err
			}
		}
	}
}

// review translates the object of an event to the guard's ID, and fails the device on
// DEVICE_FATAL. It returns false if the event must not be delivered: its object no longer
// exists, or it repeats DEVICE_FATAL.
func (d *Device) review(ev hca.AsyncEvent) (hca.AsyncEvent, bool) {
	if ev.On.Kind == hca.KindCQ || ev.On.Kind == hca.KindQP {
		d.mu.Lock()
		id, ok := d.ids[ev.On]
		d.mu.Unlock()
		if !ok {
			d.counts.staleEvents.Add(1)
			return ev, false
		}
		ev.On = id
	}
	if ev.Type == hca.EventDeviceFatal {
		d.Fail(errDeviceFatal)
		return ev, !d.fatalDelivered.Swap(true)
	}
	return ev, true
}

// backendEvent waits for an event of the backend until ctx ends or the device fails. If the
// backend ignores the end of ctx, the call is abandoned after VerbTimeout.
func (d *Device) backendEvent(ctx context.Context) (hca.AsyncEvent, error) {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &flight[hca.AsyncEvent]{answered: make(chan answer[hca.AsyncEvent], 1)}
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
		a = c.abandon(d, nextEvent, d.Err())
	case <-ctx.Done():
		p := newPatience(d.opts.VerbTimeout)
		defer p.timer.Stop()
		a = c.wait(d, verb{name: nextEvent}, p)
	}
	return a.val, a.err
}
