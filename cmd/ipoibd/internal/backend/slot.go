package backend

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Slot holds an HCA. For package device it lists the HCA (List, Watch), opens it and resets it.
type Slot struct {
	hca    HCA     // Faults, if there are any, or bare
	bare   HCA     // which may have optional methods
	Faults *Faulty // nil: no faults can be injected
	log    *slog.Logger

	mu      sync.Mutex            // guards what follows
	members []int                 // of IP groups, from another process; until Settled or Close
	last    []qprecovery.Identity // result of List
	unknown bool                  // the last List failed
}

// NewSlot returns the slot of an HCA.
func NewSlot(h HCA, allowFaults bool, log *slog.Logger) *Slot {
	s := &Slot{hca: h, bare: h, log: log}
	if allowFaults {
		s.Faults = newFaulty(h)
		s.hca = s.Faults
	}
	return s
}

// List implements device.Lister. If it fails to find out whether the HCA is present, it
// returns the previous list.
func (s *Slot) List(context.Context) []qprecovery.Identity {
	id, err := s.hca.Find()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unknown
	s.unknown = err != nil && !errors.Is(err, hca.ErrNoDevice)
	switch {
	case err == nil:
		s.last = []qprecovery.Identity{id}
	case !s.unknown:
		s.last = nil
	case !before:
		s.log.Warn("cannot determine whether the device is present; retrying", "err", err, "every", lookAgain)
	}
	return s.last
}

// lookAgain is the interval of polling, if there are no notifications or the last List
// failed. It is short enough to release a removed device within 2 s.
const lookAgain = time.Second

// Watch implements device.Lister. It sends a list after each notification even if the list
// has not changed, because List may have returned a different one in between.
func (s *Slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	found, err := s.hca.Watch(ctx)
	if err != nil {
		s.log.Warn("the kernel sends no hotplug notifications; polling the list of devices",
			"err", err, "every", lookAgain)
	}
	lists := make(chan []qprecovery.Identity, 1)
	go s.follow(ctx, found, lists)
	return lists
}

func (s *Slot) follow(ctx context.Context, found <-chan struct{}, lists chan []qprecovery.Identity) {
	defer close(lists)
	var changed <-chan struct{} // by a fault
	if s.Faults != nil {
		changed = s.Faults.changed
	}
	lists <- s.List(ctx)
	for ctx.Err() == nil {
		var again <-chan time.Time
		s.mu.Lock()
		if found == nil || s.unknown {
			again = time.After(lookAgain)
		}
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case _, ok := <-found:
			if !ok {
				found = nil // there are no more notifications
			}
		case <-changed:
		case <-again:
		}
		list := s.List(ctx)
		select {
		case <-lists: // replace a list that was not received
		default:
		}
		lists <- list
	}
}
