package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Faulty is an [HCA] into which faults can be injected: those of package faults into its open instance, and those of its
// slot, from which it can be pulled out. A fault that is to fire n times does so, even if the device is reset in between.
// The effects of faults that have fired end with their instance. Any goroutine may call its methods.
type Faulty struct {
	HCA
	changed chan struct{} // has a value if a fault may have changed the result of Find

	mu        sync.Mutex // guards what follows
	plugged   Plugged
	shift     uint32         // that is added to the index
	reindexes bool           // the next reset increases shift
	open      *faults.Device // the instance that is open; nil: none
	later     []faults.Fault // planned for the next instance
}

// Plugged is the content of a slot, which faults change. A hand-over passes the numbers on.
type Plugged uint8

// Contents of a slot.
const (
	PluggedIn    Plugged = iota // the HCA
	PluggedOut                  // nothing: the HCA was pulled out
	PluggedOther                // another HCA, put in after that
)

func newFaulty(h HCA) *Faulty { return &Faulty{HCA: h, changed: make(chan struct{}, 1)} }

var errPulledOut = fmt.Errorf("%w: pulled out by a fault", hca.ErrNoDevice)

// Find implements HCA.
func (f *Faulty) Find() (qprecovery.Identity, error) {
	f.mu.Lock()
	p, shift := f.plugged, f.shift
	f.mu.Unlock()
	if p == PluggedOut {
		return qprecovery.Identity{}, errPulledOut
	}
	id, err := f.HCA.Find()
	if p == PluggedOther {
		for _, g := range []*hca.GUID{&id.NodeGUID, &id.PortGUID, &id.SysImageGUID} {
			g[len(g)-1] ^= 0xff
		}
	}
	id.Index += shift
	return id, err
}

// Open implements HCA. It first makes the verbs return that a fault has caused to hang in the previous instance.
func (f *Faulty) Open(id qprecovery.Identity) (hca.Device, error) {
	f.retire()
	open := faults.New(faults.Options{OnUnplug: func() { _ = f.Plug(PluggedOut) }})
	f.mu.Lock()
	later := f.later
	f.open, f.later = open, nil
	id.Index -= f.shift // as the HCA itself knows it
	f.mu.Unlock()
	var err error
	for _, x := range later { // without the lock, because it may unplug the device
		err = errors.Join(err, open.Inject(x))
	}
	if err == nil {
		err = open.Open(func() (hca.Device, error) { return f.HCA.Open(id) })
	}
	if err != nil {
		f.end(open)
		return nil, err
	}
	return open, nil
}

// Reset implements HCA.
func (f *Faulty) Reset(ctx context.Context) error {
	f.retire()
	err := f.HCA.Reset(ctx)
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil && f.reindexes { // as if the HCA had been removed and added
		f.reindexes = false
		f.shift++
		f.hint()
	}
	return err
}

// Complete implements HCA.
func (f *Faulty) Complete(ctx context.Context) error {
	f.retire()
	return f.HCA.Complete(ctx)
}

// retire ends the open instance, and makes the verbs return that hang in it.
func (f *Faulty) retire() {
	f.mu.Lock()
	open := f.open
	f.mu.Unlock()
	f.end(open)
}

// end ends an instance, unless another one is open by now or it is nil.
func (f *Faulty) end(open *faults.Device) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if open != nil && f.open == open {
		f.later = append(f.later, open.Planned()...)
		open.Clear()
		open.Release()
		f.open = nil
	}
}

// hint makes [Slot.Watch] read the list again. It never blocks.
func (f *Faulty) hint() {
	select {
	case f.changed <- struct{}{}:
	default: // the last hint has not been received yet
	}
}

// ErrNotPulledOut means that the slot is not empty.
var ErrNotPulledOut = errors.New("nothing is unplugged; run 'ipoibd fault unplug' first")

// Plug changes the content of the slot. It never blocks. It returns ErrNotPulledOut if an HCA
// is to be put in and none was pulled out.
func (f *Faulty) Plug(p Plugged) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.plugged == PluggedIn && p != PluggedOut {
		return ErrNotPulledOut
	}
	f.plugged = p
	f.hint()
	return nil
}

// Reindex makes the next reset change the index of the HCA in the list.
func (f *Faulty) Reindex() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reindexes = true
}

// ErrNotOpen means that there is no instance to inject a fault into.
var ErrNotOpen = errors.New("the device is not open")

// Inject plans a fault for the open instance. Errors: ErrNotOpen, hca.ErrInvalid.
func (f *Faulty) Inject(x faults.Fault) error {
	f.mu.Lock()
	open := f.open
	f.mu.Unlock()
	if open == nil {
		return ErrNotOpen
	}
	return open.Inject(x) // without the lock, like Open
}

// Clear withdraws the faults that have not fired, and lets the verbs return that a fault has caused to hang.
func (f *Faulty) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reindexes, f.later = false, nil
	if f.open != nil {
		f.open.Clear()
		f.open.Release()
	}
}
