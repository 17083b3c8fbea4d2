package faults

import (
	"context"
	"sync"

	"ipoibd/hca"
)

// maxEvents bounds the injected events that wait; an operator does not get there.
const maxEvents = 1024

// eventQueue holds injected events.
type eventQueue struct {
	mu     sync.Mutex
	events []hca.AsyncEvent
	cancel context.CancelFunc // ends the wait for an event of the backend
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

// take returns an event, or else leaves cancel for the next put.
func (q *eventQueue) take(cancel context.CancelFunc) (hca.AsyncEvent, bool) {
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
		if ev, ok := d.queue.take(cancel); ok {
			cancel()
			return ev, nil
		}
		ev, err := d.Device.NextEvent(inner)
		injected := inner.Err() != nil && ctx.Err() == nil
		cancel()
		if err == nil || !injected {
			return ev, err
		}
	}
}
