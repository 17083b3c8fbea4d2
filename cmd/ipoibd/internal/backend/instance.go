package backend

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// Probe opens the HCA for a moment, so that a mistake in the configuration is reported at
// the start. It returns the GUID of port 1, from which the stable MAC of an interface is
// derived, and checks that interfaces can use the given ports. It returns the GUID also with
// ErrBusy and ErrBroken, after which the device retries to open the HCA.
func (s *Slot) Probe(ports ...uint8) (hca.GUID, error) {
	id, err := s.hca.Find()
	if err != nil {
		return hca.GUID{}, err
	}
	err = resetlock.Use(s.locks(id), func() error {
		open := func(context.Context) (hca.Device, error) { return s.bare.Open(id) }
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
	id, err := s.hca.Find()
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
	if c, ok := s.bare.(changer); ok {
		c.Change(cfg)
	}
}

// checkPort returns an error if no interface can ever use the port.
func checkPort(dev hca.Device, num uint8) error {
	if n := dev.Attr().Ports; num > n {
		return fmt.Errorf("there is no port %d, the device has %d: %w", num, n, hca.ErrInvalid)
	}
	_, err := dev.QueryPort(num)
	return err
}

// Open opens the HCA.
func (s *Slot) Open(context.Context) (hca.Device, error) {
	id, err := s.hca.Find()
	if err == nil && id.Dead {
		err = fmt.Errorf("the kernel lists no RDMA device for it: %w", hca.ErrNoDevice)
	}
	if err != nil {
		return nil, err
	}
	return s.hca.Open(id)
}

// Reset resets the HCA itself, even if it is still in use. It returns when ctx ends.
func (s *Slot) Reset(ctx context.Context) error { return s.hca.Reset(ctx) }

// Complete completes a reset of the HCA that another process began.
func (s *Slot) Complete(ctx context.Context) error { return s.hca.Complete(ctx) }

// Sharing returns how the processes that share the HCA coordinate its resets.
func (s *Slot) Sharing() Sharing { return s.hca.Sharing() }

// Run calls use, which opens and closes the HCA until ctx ends, and meanwhile runs the
// background work of the HCA. Then it releases everything.
func (s *Slot) Run(ctx context.Context, use func(context.Context)) {
	var wg sync.WaitGroup
	wg.Go(func() { s.hca.Run(ctx) })
	use(ctx)
	if s.Faults != nil {
		s.Faults.retire()
	}
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
