package backend

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Slot holds an HCA, unless a fault has pulled it out. For package device it lists the HCA
// (List, Watch), opens it and resets it.
type Slot struct {
	hca         HCA
	log         *slog.Logger
	allowFaults bool
	changed     chan struct{} // has a value if the list may have changed by a fault

	mu        sync.Mutex // guards what follows
	members   []int      // of IP groups, from another process; until Settled or Close
	plugged   Plugged
	shift     uint32                // that faults add to the index
	reindexes bool                  // the next reset increases shift
	last      []qprecovery.Identity // result of List
	unknown   bool                  // the last List failed

	// A planned fault that is to fire n times does so, even if the device is reset in between.
	// The effects of faults that have fired end with their instance.
	open  *faults.Device // the instance that is open; nil: none
	later []faults.Fault // planned for the next instance
}

// Plugged is the content of a slot, which faults change.
type Plugged uint8

// Contents of a slot.
const (
	PluggedIn    Plugged = iota // the HCA
	PluggedOut                  // nothing: the HCA was pulled out
	PluggedOther                // another HCA, put in after that
)

// NewSlot returns the slot of an HCA.
func NewSlot(h HCA, allowFaults bool, log *slog.Logger) *Slot {
	return &Slot{hca: h, allowFaults: allowFaults, log: log, changed: make(chan struct{}, 1)}
}

// Plug changes the content of the slot. It never blocks. It returns ErrNotPulledOut if an HCA
// is to be put in and none was pulled out.
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

// hint makes Watch read the list again. It never blocks.
func (s *Slot) hint() {
	select {
	case s.changed <- struct{}{}:
	default: // the last hint has not been received yet
	}
}

// ErrNotPulledOut means that the slot is not empty.
var ErrNotPulledOut = errors.New("nothing is unplugged; run 'ipoibd fault unplug' first")

// look returns the HCA in the slot, or hca.ErrNoDevice if there is none.
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

// List implements device.Lister. If it fails to find out whether the HCA is present, it
// returns the previous list.
func (s *Slot) List(context.Context) []qprecovery.Identity {
	id, err := s.look()
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.unknown
	s.unknown = err != nil && !errors.Is(err, hca.ErrNoDevice)
	switch {
	case err == nil:
		id.Index += s.shift
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
		case <-s.changed:
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
