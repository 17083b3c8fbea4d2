package soft

import (
	"context"
	"slices"
	"sync"

	"ipoibd/hca"
)

// maxEvents bounds the events that wait: with merging, more than there are
// kinds of event on the objects of any sensible number.
const maxEvents = 256

// events is the queue of asynchronous events.
type events struct {
	mu     sync.Mutex
	queue  []hca.AsyncEvent
	signal chan struct{} // an event may be there
	closed chan struct{}
}

func (e *events) init() {
	e.signal = make(chan struct{}, 1)
	e.closed = make(chan struct{})
}

// put queues an event; when the queue is full, an equal one stands for it, else
// it is lost and put returns false.
func (e *events) put(ev hca.AsyncEvent) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) >= maxEvents {
		return slices.Contains(e.queue, ev)
	}
	e.queue = append(e.queue, ev)
	notify(e.signal)
	return true
}

func (e *events) take() (hca.AsyncEvent, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return hca.AsyncEvent{}, false
	}
	ev := e.queue[0]
	e.queue = slices.Delete(e.queue, 0, 1)
	return ev, true
}

func (e *events) next(ctx context.Context) (hca.AsyncEvent, error) {
	for {
		if ev, ok := e.take(); ok {
			return ev, nil
		}
		select {
		case <-e.signal:
		case <-ctx.Done():
			return hca.AsyncEvent{}, ctx.Err()
		case <-e.closed:
			return hca.AsyncEvent{}, verb("get_async_event", "", hca.ErrClosed)
		}
	}
}

func (e *events) close() { close(e.closed) }

// notify leaves a token in a channel of capacity 1.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
