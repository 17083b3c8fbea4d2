package iface

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/soft"
	"ipoibd/hca/soft/memfabric"
	"ipoibd/qprecovery"
)

// plugged is what is in a slot.
type plugged uint8

const (
	pluggedIn plugged = iota
	pluggedOut
	pluggedOther
)

// slot is what a host's HCA is plugged into: the device.Lister. It keeps every
// instance that there was, for the accounts.
type slot struct {
	name    string
	fabric  *memfabric.Fabric
	under   netip.Addr
	rnd     *rand.Rand    // of queue pair numbers
	changed chan struct{} // has a value when in or index changed

	mu    sync.Mutex // guards what follows
	in    plugged
	index uint32 // of the netdev
	all   []instance
	later []faults.Fault // planned for the next instance
}

// instance is one opening of the HCA.
type instance struct {
	port *memfabric.Port
	soft *soft.Device
	dev  *faults.Device
}

func newSlot(fabric *memfabric.Fabric, name string, under netip.Addr, seed uint64) *slot {
	return &slot{
		name: name, fabric: fabric, under: under, index: 1,
		rnd: rand.New(rand.NewPCG(seed, uint64(under.As4()[3]))), changed: make(chan struct{}, 1),
	}
}

// plug changes what is in the slot. What goes takes its netdev along.
func (s *slot) plug(what plugged) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == what {
		return
	}
	if s.in = what; what == pluggedOut {
		s.last().port.Remove()
	} else {
		s.index++
	}
	select {
	case s.changed <- struct{}{}:
	default: // the last change was not looked at yet
	}
}

// last is the instance that was opened last. s.mu is held.
func (s *slot) last() instance { return s.all[len(s.all)-1] }

// present is the same for anybody.
func (s *slot) present() instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last()
}

// instances are all that there were.
func (s *slot) instances() []instance {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.all)
}

// clear withdraws the faults that have not struck.
func (s *slot) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.later = nil
	s.last().dev.Clear()
}

// guid is that of the HCA in the slot. s.mu is held.
func (s *slot) guid() hca.GUID {
	return hca.GUID{2, 0, 0, 0xff, 0xfe, byte(s.in), 0, s.under.As4()[3]}
}

// List implements device.Lister.
func (s *slot) List(context.Context) []qprecovery.Identity {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == pluggedOut {
		return nil
	}
	g := s.guid()
	return []qprecovery.Identity{{NodeGUID: g, PortGUID: g, SysImageGUID: g, Index: s.index}}
}

// Watch implements device.Lister.
func (s *slot) Watch(ctx context.Context) <-chan []qprecovery.Identity {
	lists := make(chan []qprecovery.Identity)
	go func() {
		defer close(lists)
		for ctx.Err() == nil {
			select {
			case lists <- s.List(ctx):
			case <-ctx.Done():
			}
			select {
			case <-s.changed:
			case <-ctx.Done():
			}
		}
	}()
	return lists
}

// open is the device.Opener. Faults that wait are planned outside of the lock:
// they may strike at once, and pull the HCA out.
func (s *slot) open(ctx context.Context) (hca.Device, error) {
	if err := s.reset(ctx); err != nil {
		return nil, err
	}
	i, planned, err := s.openInstance()
	if err != nil {
		return nil, err
	}
	for _, f := range planned {
		if err := i.dev.Inject(f); err != nil {
			return nil, err
		}
	}
	return i.dev, nil
}

func (s *slot) openInstance() (i instance, planned []faults.Fault, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.in == pluggedOut {
		return i, nil, fmt.Errorf("%w: slot %s is empty", hca.ErrNoDevice, s.name)
	}
	i.port = s.fabric.Attach(s.name, underlayMTU, s.under)
	i.soft, err = soft.Open(soft.Config{Name: "soft", Transport: i.port, GUID: s.guid(), Rand: s.rnd})
	if err != nil {
		return i, nil, err
	}
	i.dev = faults.Wrap(i.soft, faults.Options{OnUnplug: func() { s.plug(pluggedOut) }})
	s.all = append(s.all, i)
	planned, s.later = s.later, nil
	return i, planned, nil
}

// reset has what hangs in the HCA return, and frees its netdev. What has not
// struck yet is for the next instance.
func (s *slot) reset(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.all) == 0 {
		return nil
	}
	i := s.last()
	s.later = append(s.later, i.dev.Planned()...)
	i.dev.Clear()
	i.dev.Release()
	return i.port.Close()
}
