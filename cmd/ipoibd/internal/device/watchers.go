package device

import (
	"sync"

	"ipoibd/hca"
)

// watchers are those who want the events of single objects.
type watchers struct {
	mu   sync.Mutex // held while one is called, so that stop waits for it
	next uint64
	of   map[hca.ObjectID]map[uint64]func(hca.AsyncEvent)
}

func (w *watchers) add(id hca.ObjectID, f func(hca.AsyncEvent)) (stop func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of == nil {
		w.of = map[hca.ObjectID]map[uint64]func(hca.AsyncEvent){}
	}
	if w.of[id] == nil {
		w.of[id] = map[uint64]func(hca.AsyncEvent){}
	}
	n := w.next
	w.next++
	w.of[id][n] = f
	return func() { w.remove(id, n) }
}

func (w *watchers) remove(id hca.ObjectID, n uint64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.of[id], n)
	if len(w.of[id]) == 0 {
		delete(w.of, id)
	}
}

// tell calls the watchers of the object that an event is about.
func (w *watchers) tell(ev hca.AsyncEvent) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.of[ev.On] {
		f(ev)
	}
}
