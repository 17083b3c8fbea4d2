package faults

import (
	"context"
	"sync"

	"ipoibd/hca"
)

// maxEvents bounds the injected events in the queue. It is more than an operator injects.
const maxEvents = 1024

// eventQueue holds injected events.
type eventQueue struct {
	mu     sync.Mutex
	events []hca.AsyncEvent
	cancel context.CancelFunc // ends NextEvent of the backend
}

func (q *eventQueue) put(ev hca.AsyncEvent) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) < maxEvents {
		q.events = append(q.events, ev)
	}
	if q.cancel != nil {
		q.cancel()
	}
}

// pop removes and returns the first event. If there is none, the next put calls cancel.
func (q *eventQueue) pop(cancel context.CancelFunc) (hca.AsyncEvent, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		q.cancel = cancel
		return hca.AsyncEvent{}, false
	}
	ev := q.events[0]
	q.events = q.events[1:]
	return ev, true
}

// NextEvent implements [hca.Device].
func (d *Device) NextEvent(ctx context.Context) (hca.AsyncEvent, error) {
	for {
		inner, cancel := context.WithCancel(ctx)
		ev, ok := d.queue.pop(cancel)
		var err error
		if !ok {
			ev, err = d.Device.NextEvent(inner)
		}
		injected := inner.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil && !(d.busy.Load() && d.fireOne(EventLost)) || err != nil && !injected {
			return ev, err
		}
	}
}
