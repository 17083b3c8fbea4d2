package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/faults"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
	"ipoibd/ud/port"
)

// Probe opens the HCA for a moment, so that a mistake in the configuration is reported at
// the start. It returns the GUID of port 1, from which the stable MAC of an interface is
// derived, and checks that interfaces can use the given ports. It returns the GUID also with
// ErrBusy and ErrBroken, after which the device retries to open the HCA.
func (s *Slot) Probe(ports ...uint8) (hca.GUID, error) {
	id, err := s.look()
	if err != nil {
		return hca.GUID{}, err
	}
	err = resetlock.Use(s.locks(id), func() error {
		open := func(context.Context) (hca.Device, error) { return s.hca.Open(id) }
		dev, err := guard.Open(context.Background(), open, guard.Options{})
		if err != nil {
			return err
		}
		for _, num := range ports {
			err = errors.Join(err, checkPort(dev, num))
		}
		return errors.Join(err, dev.Close())
	})
	switch {
	case errors.Is(err, resetlock.ErrResetting):
		err = &busyError{err}
	case qprecovery.OfVerbError(qprecovery.VerbOpenDevice, err).NeedsReset():
		err = fmt.Errorf("%w: %w", ErrBroken, err)
	}
	return id.PortGUID, err
}

// locks describes the locks by which processes share the HCA.
func (s *Slot) locks(id qprecovery.Identity) resetlock.Config {
	sharing := s.Sharing()
	return resetlock.Config{Dir: sharing.Dir, Log: s.log, Config: reset.Config{Device: reset.Device{
		NodeGUID: id.NodeGUID, PCIAddr: id.PCIAddr, Parent: id.Parent, Name: id.Name, Means: sharing.Means,
	}}}
}

// Look returns the GUID of port 1 without opening the HCA. It returns hca.ErrNoDevice if the HCA is absent.
func (s *Slot) Look() (hca.GUID, error) {
	id, err := s.look()
	return id.PortGUID, err
}

// changer is an [HCA] that can change some of its settings while it is open.
type changer interface {
	// Change applies those settings of a configuration that differs in nothing else.
	// Any goroutine may call it. It does not block.
	Change(cfg config.Device)
}

// Change applies the settings that config.MakePlan lets change while the HCA is in use.
func (s *Slot) Change(cfg config.Device) {
	if c, ok := s.hca.(changer); ok {
		c.Change(cfg)
	}
}

// checkPort returns an error if no interface can ever use the port.
func checkPort(dev hca.Device, num uint8) error {
	if n := dev.Attr().Ports; num > n {
		return fmt.Errorf("there is no port %d, the device has %d: %w", num, n, hca.ErrInvalid)
	}
	attr, err := dev.QueryPort(num)
	if err == nil && attr.LinkLayer == hca.LinkLayerInfiniBand {
		err = fmt.Errorf("port %d: %w", num, port.ErrLinkLayer)
	}
	return err
}

// Open opens the HCA. It first makes the verbs return that a fault has caused to hang in the
// previous instance.
func (s *Slot) Open(context.Context) (hca.Device, error) {
	s.retire()
	id, err := s.look()
	if err == nil && id.Dead {
		err = fmt.Errorf("the kernel lists no RDMA device for it: %w", hca.ErrNoDevice)
	}
	if err != nil {
		return nil, err
	}
	if !s.allowFaults {
		return s.hca.Open(id)
	}
	open := faults.New(faults.Options{OnUnplug: func() { _ = s.Plug(PluggedOut) }})
	s.mu.Lock()
	later := s.later
	s.open, s.later = open, nil
	s.mu.Unlock()
	for _, f := range later { // without the lock, because it may unplug the device
		err = errors.Join(err, open.Inject(f))
	}
	if err == nil {
		err = open.Open(func() (hca.Device, error) { return s.hca.Open(id) })
	}
	if err != nil {
		s.end(open)
		return nil, err
	}
	return open, nil
}

// retire ends the open instance, and makes the verbs return that hang in it.
func (s *Slot) retire() {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	s.end(open)
}

// end ends an instance, unless another one is open by now or it is nil.
func (s *Slot) end(open *faults.Device) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if open != nil && s.open == open {
		s.later = append(s.later, open.Planned()...)
		open.Clear()
		open.Release()
		s.open = nil
	}
}

// Reset resets the HCA itself, even if it is still in use. It returns when ctx ends.
func (s *Slot) Reset(ctx context.Context) error {
	s.retire()
	err := s.hca.Reset(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.reindexes { // as if the HCA had been removed and added
		s.reindexes = false
		s.shift++
		s.hint()
	}
	return err
}

// Complete completes a reset of the HCA that another process began.
func (s *Slot) Complete(ctx context.Context) error {
	s.retire()
	return s.hca.Complete(ctx)
}

// Sharing returns how the processes that share the HCA coordinate its resets.
func (s *Slot) Sharing() Sharing { return s.hca.Sharing() }

// Run calls use, which opens and closes the HCA until ctx ends, and meanwhile runs the
// background work of the HCA. Then it releases everything.
func (s *Slot) Run(ctx context.Context, use func(context.Context)) {
	var wg sync.WaitGroup
	wg.Go(func() { s.hca.Run(ctx) })
	use(ctx)
	s.retire()
	wg.Wait()
	if err := s.Close(); err != nil {
		s.log.Error("cannot release the resources of the device", "err", err)
	}
}

// Close releases the resources that an opening leaves behind. Run does so too.
func (s *Slot) Close() error {
	s.Settled()
	return s.hca.Close()
}

// Info describes the HCA, open or not.
func (s *Slot) Info() Info { return s.hca.Info() }

// ErrNotOpen means that there is no instance to inject a fault into.
var ErrNotOpen = errors.New("the device is not open")

// Inject plans a fault for the open instance. Errors: ErrNotOpen, hca.ErrInvalid.
func (s *Slot) Inject(f faults.Fault) error {
	s.mu.Lock()
	open := s.open
	s.mu.Unlock()
	if open == nil {
		return ErrNotOpen
	}
	return open.Inject(f) // without the lock, like Open
}

// Reindex makes the next reset change the index of the HCA in the list.
func (s *Slot) Reindex() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reindexes = true
}

// ClearFaults withdraws the faults that have not fired.
func (s *Slot) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reindexes, s.later = false, nil
	if s.open != nil {
		s.open.Clear()
	}
}
