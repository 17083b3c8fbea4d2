package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/hca"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/udp"
	"ipoibd/qprecovery"
)

// slot is what the software HCA is plugged into, its netdev: the device.Lister.
// It has the HCA while the netdev is there, unless a fault pulled it out.
type slot struct {
	netdev  string
	log     *slog.Logger
	changed chan struct{} // has a value when plugged changed

	mu       sync.Mutex // guards what follows
	plugged  plugged
	index    int      // of the netdev that guid is of
	guid     hca.GUID // of the HCA
	fallback hca.GUID // of one on a netdev without a MAC
}

// plugged is what faults have made of a slot.
type plugged uint8

const (
	pluggedIn    plugged = iota
	pluggedOut           // it was pulled out
	pluggedOther         // and another one was put in
)

func newSlot(netdev string, log *slog.Logger) *slot {
	return &slot{netdev: netdev, log: log, changed: make(chan struct{}, 1)}
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
	select {
	case s.changed <- struct{}{}:
	default: // the last change was not looked at yet
	}
	return nil
}

var errNotPulledOut = fmt.Errorf("%w: nothing is unplugged; 'ipoibd fault unplug' first", control.ErrConflict)

// look returns the HCA that is there: hca.ErrNoDevice when there is none.
func (s *slot) look() (qprecovery.Identity, error) {
	n, err := udp.FindNetdev(s.netdev)
	if err != nil {
		return qprecovery.Identity{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.plugged == pluggedOut {
		return qprecovery.Identity{}, errPulledOut
	}
	guid, err := s.guidOf(n)
	return qprecovery.Identity{
		NodeGUID: guid, PortGUID: guid, SysImageGUID: guid, Index: uint32(n.Index), Name: s.netdev,
	}, err
}

var errPulledOut = fmt.Errorf("%w: pulled out by a fault", hca.ErrNoDevice)

// guidOf keeps the GUID for as long as the netdev lives, also when its MAC
// changes. s.mu is held.
func (s *slot) guidOf(n udp.Netdev) (guid hca.GUID, err error) {
	if s.index != n.Index {
		if s.guid, err = s.newGUID(n); err != nil {
			return guid, err
		}
		s.index = n.Index
	}
	guid = s.guid
	if s.plugged == pluggedOther {
		guid[len(guid)-1] ^= 0xff
	}
	return guid, nil
}

func (s *slot) newGUID(n udp.Netdev) (_ hca.GUID, err error) {
	if n.MAC != [6]byte{} {
		return soft.GUIDOf(n.MAC), nil
	}
	if s.fallback == (hca.GUID{}) { // once: a reset opens no file
		s.fallback, err = hostGUID(s.netdev)
	}
	return s.fallback, err
}

// List implements device.Lister.
func (s *slot) List(context.Context) []qprecovery.Identity {
	id, err := s.look()
	if err != nil {
		return nil
	}
	return []qprecovery.Identity{id}
}

// Watch implements device.Lister.
func (s *slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	netdevs, err := udp.WatchNetdevs(ctx)
	if err != nil {
		s.log.Warn("netdevs that come and go are noticed late", "err", err)
	}
	lists := make(chan []qprecovery.Identity, 1)
	go s.watch(ctx, netdevs, lists)
	return lists
}

func (s *slot) watch(ctx context.Context, netdevs <-chan struct{}, lists chan []qprecovery.Identity) {
	defer close(lists)
	last := s.List(ctx)
	lists <- last
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-netdevs:
		case <-s.changed:
		}
		if now := s.List(ctx); !slices.Equal(now, last) {
			replace(lists, now)
			last = now
		}
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
