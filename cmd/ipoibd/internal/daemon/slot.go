package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// source tells of the one HCA that a device is to be.
type source interface {
	// find returns the HCA that is there: hca.ErrNoDevice when there is none. Any
	// other error is no statement.
	find() (qprecovery.Identity, error)
	// watch has a value whenever find may return something else, until ctx ends.
	watch(ctx context.Context) (<-chan struct{}, error)
}

// slot is what an HCA is plugged into: the device.Lister. It has the HCA while its
// source does, unless a fault pulled it out.
type slot struct {
	source
	log     *slog.Logger
	changed chan struct{} // has a value when plugged changed

	mu      sync.Mutex // guards what follows
	plugged plugged
	shift   uint32                // added to the index, by faults
	last    []qprecovery.Identity // of List
	unsure  bool                  // the last List could not find out
}

// plugged is what faults have made of a slot.
type plugged uint8

const (
	pluggedIn    plugged = iota
	pluggedOut           // it was pulled out
	pluggedOther         // and another one was put in
)

func newSlot(s source, log *slog.Logger) *slot {
	return &slot{source: s, log: log, changed: make(chan struct{}, 1)}
}

// plug does what a fault orders. It never blocks. control.ErrConflict where the HCA
// was not pulled out, so that nothing can be put in.
func (s *slot) plug(p plugged) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugged == pluggedIn && p != pluggedOut {
		return errNotPulledOut
	}
	s.plugged = p
	s.hint()
	return nil
}

// reindex changes the index of the HCA in the list, as if the HCA had been removed and
// added. It never blocks.
func (s *slot) reindex() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shift++
	s.hint()
}

// hint makes follow read the list again. It never blocks.
func (s *slot) hint() {
	select {
	case s.changed <- struct{}{}:
	default: // the last change was not looked at yet
	}
}

var errNotPulledOut = fmt.Errorf("%w: nothing is unplugged; 'ipoibd fault unplug' first", control.ErrConflict)

// look returns the HCA that is there: hca.ErrNoDevice when there is none.
func (s *slot) look() (qprecovery.Identity, error) {
	s.mu.Lock()
	p := s.plugged
	s.mu.Unlock()
	if p == pluggedOut {
		return qprecovery.Identity{}, errPulledOut
	}
	id, err := s.find()
	if p == pluggedOther {
		for _, g := range []*hca.GUID{&id.NodeGUID, &id.PortGUID, &id.SysImageGUID} {
			g[len(g)-1] ^= 0xff
		}
	}
	return id, err
}

var errPulledOut = fmt.Errorf("%w: pulled out by a fault", hca.ErrNoDevice)

// List implements device.Lister. What cannot be found out is as it was.
func (s *slot) List(context.Context) []qprecovery.Identity {
	id, err := s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unsure
	s.unsure = err != nil && !errors.Is(err, hca.ErrNoDevice)
	switch {
	case err == nil:
		id.Index += s.shift
		s.last = []qprecovery.Identity{id}
	case !s.unsure:
		s.last = nil
	case !before:
		s.log.Warn("cannot find out whether the device is there; asking again", "err", err, "every", lookAgain)
	}
	return s.last
}

// lookAgain is how often it is looked where nobody tells, or tells again what could
// not be found out: often enough for a device that is gone to be let go within 2 s.
const lookAgain = time.Second

// again has a value when that is due; nil: it is not. Nobody tells where it is deaf.
func (s *slot) again(deaf bool) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !deaf && !s.unsure {
		return nil
	}
	return time.After(lookAgain)
}

// Watch implements device.Lister.
func (s *slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	found, err := s.watch(ctx)
	if err != nil {
		s.log.Warn("no hotplug notifications; polling the list of devices", "err", err, "every", lookAgain)
	}
	lists := make(chan []qprecovery.Identity, 1)
	go s.follow(ctx, found, lists)
	return lists
}

// follow tells each list, also one that is as the last one told: List may have shown
// another one meanwhile.
func (s *slot) follow(ctx context.Context, found <-chan struct{}, lists chan []qprecovery.Identity) {
	defer close(lists)
	lists <- s.List(ctx)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case _, ok := <-found:
			if !ok {
				found = nil // nobody tells any more
			}
		case <-s.changed:
		case <-s.again(found == nil):
		}
		replace(lists, s.List(ctx))
	}
}

// replace puts a value into a channel of one place, instead of one that nobody
// took. One goroutine sends.
func replace[T any](ch chan T, v T) {
	select {
	case <-ch:
	default: // it was taken
	}
	ch <- v
}
