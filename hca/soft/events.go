package soft

import (
	"context"
	"slices"
	"sync"

	"ipoibd/hca"
)

// maxEvents bounds the queue. Equal events are merged, so it has room for every kind of
// event on any reasonable number of objects.
const maxEvents = 256

// events is the queue of asynchronous events.
type events struct {
	mu     sync.Mutex
	queue  []hca.AsyncEvent
	signal chan struct{} // the queue may have an event
	closed chan struct{}
}

func (e *events) init() {
	e.signal = make(chan struct{}, 1)
	e.closed = make(chan struct{})
}

// put queues an event. If the queue is full and has no equal event, the event is lost and
// put returns false.
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

func (e *events) pop() (hca.AsyncEvent, bool) {
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
		if ev, ok := e.pop(); ok {
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

// notify puts a token into a channel of capacity 1, unless it has one.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
