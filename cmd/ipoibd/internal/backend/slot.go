package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Slot is what an HCA is plugged into. It has the HCA while that is there, unless a fault
// pulled it out. For package device it lists the HCA (List, Watch), opens it and resets
// it.
type Slot struct {
	hca     HCA
	log     *slog.Logger
	changed chan struct{} // has a value when plugged changed
	plans   *plans        // nil: faults are not allowed

	reindexes atomic.Bool // set by a fault: the next reset changes the index

	mu      sync.Mutex // guards what follows
	plugged Plugged
	shift   uint32                // added to the index, by faults
	last    []qprecovery.Identity // of List
	unsure  bool                  // the last List could not find out
}

// Plugged is what faults have made of a slot.
type Plugged uint8

// What is in a slot.
const (
	PluggedIn    Plugged = iota // the HCA
	PluggedOut                  // none: it was pulled out
	PluggedOther                // another HCA, put in after that
)

// NewSlot returns the slot of an HCA.
func NewSlot(h HCA, allowFaults bool, log *slog.Logger) *Slot {
	s := &Slot{hca: h, log: log, changed: make(chan struct{}, 1)}
	if allowFaults {
		s.plans = &plans{}
	}
	return s
}

// Plug changes what is in the slot, as a fault orders it. It never blocks. Error:
// ErrNotPulledOut if the HCA was not pulled out, so that nothing can be put in.
func (s *Slot) Plug(p Plugged) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugged == PluggedIn && p != PluggedOut {
		return ErrNotPulledOut
	}
	s.plugged = p
	s.hint()
	return nil
}

// reindex changes the index of the HCA in the list, as if the HCA had been removed and
// added. It never blocks.
func (s *Slot) reindex() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shift++
	s.hint()
}

// hint makes follow read the list again. It never blocks.
func (s *Slot) hint() {
	select {
	case s.changed <- struct{}{}:
	default: // the last change was not looked at yet
	}
}

// ErrNotPulledOut: nothing can be plugged in.
var ErrNotPulledOut = errors.New("nothing is unplugged; 'ipoibd fault unplug' first")

// look returns the HCA that is there: hca.ErrNoDevice when there is none.
func (s *Slot) look() (qprecovery.Identity, error) {
	s.mu.Lock()
	p := s.plugged
	s.mu.Unlock()
	if p == PluggedOut {
		return qprecovery.Identity{}, errPulledOut
	}
	id, err := s.hca.Find()
	if p == PluggedOther {
		for _, g := range []*hca.GUID{&id.NodeGUID, &id.PortGUID, &id.SysImageGUID} {
			g[len(g)-1] ^= 0xff
		}
	}
	return id, err
}

var errPulledOut = fmt.Errorf("%w: pulled out by a fault", hca.ErrNoDevice)

// List implements device.Lister. What cannot be found out is as it was.
func (s *Slot) List(context.Context) []qprecovery.Identity {
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
func (s *Slot) again(deaf bool) <-chan time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !deaf && !s.unsure {
		return nil
	}
	return time.After(lookAgain)
}

// Watch implements device.Lister.
func (s *Slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	found, err := s.hca.Watch(ctx)
	if err != nil {
		s.log.Warn("no hotplug notifications; polling the list of devices", "err", err, "every", lookAgain)
	}
	lists := make(chan []qprecovery.Identity, 1)
	go s.follow(ctx, found, lists)
	return lists
}

// follow tells each list, also one that is as the last one told: List may have shown
// another one meanwhile.
func (s *Slot) follow(ctx context.Context, found <-chan struct{}, lists chan []qprecovery.Identity) {
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
