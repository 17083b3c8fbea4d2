package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
)

const (
	// settlePause is the pause before interfaces and devices that have something under way are asked again.
	settlePause = 2 * time.Millisecond
	// standLimit bounds how long traffic stands still, from when the first interface parks until the taker
	// has everything. It takes some 10 ms, or ten times as long on a busy machine.
	standLimit = 3 * time.Second
)

// Parked is a fleet that waits, because another process may continue everything.
type Parked struct {
	fleet   *Fleet
	ifaces  []parkedInterface
	devices []parkedDevice
}

type parkedInterface struct {
	*Interface
	held *iface.Parked
}

type parkedDevice struct {
	*Device
	held   *device.Parked
	paused bool // it does not receive
}

// Settle waits until all interfaces and devices can be handed over, without stopping any.
func (f *Fleet) Settle(ctx context.Context) error {
	var unsettled error // the last reason to wait
	for {
		err := f.canPark(ctx)
		switch {
		case isUnsettled(err):
			unsettled = err
		case err != nil && ctx.Err() != nil && unsettled != nil: // the time ended while it asked again
			return unsettled
		default:
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(settlePause):
		}
	}
}

// isUnsettled reports whether what could not be parked may be parked in a moment.
func isUnsettled(err error) bool {
	return errors.Is(err, iface.ErrUnsettled) || errors.Is(err, device.ErrUnsettled)
}

// canPark returns why an interface or a device cannot be parked now.
func (f *Fleet) canPark(ctx context.Context) error {
	devices, _ := f.lists()
	for _, m := range f.working() {
		if err := m.iface.CanPark(ctx); err != nil {
			return fmt.Errorf("interface %s: %w", m.Name(), err)
		}
	}
	for _, d := range devices {
		if err := d.CanPark(ctx); err != nil {
			return fmt.Errorf("device %s: %w", d.name, err)
		}
	}
	return nil
}

// working returns the interfaces that have not failed.
func (f *Fleet) working() (all []*Interface) {
	_, ifaces := f.lists()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range ifaces {
		if m.failure == nil {
			all = append(all, m)
		}
	}
	return all
}

// Park parks everything, and returns until when it may stand still. If a part has begun to change its
// state since it was asked, the others continue until that change has ended. After an error, some of them are parked.
func (f *Fleet) Park(ctx context.Context) (p *Parked, limit time.Time, err error) {
	for {
		limit = time.Now().Add(standLimit)
		if p, err = f.park(ctx); !isUnsettled(err) || ctx.Err() != nil {
			return p, limit, err
		}
		p.Resume()
		if err = f.Settle(ctx); err != nil {
			return &Parked{}, limit, err
		}
	}
}

// park parks interfaces, and then devices: they receive until all interfaces have stopped sending, so
// that what one sends to another still arrives. After an error, some of them are parked.
func (f *Fleet) park(ctx context.Context) (*Parked, error) {
	p := &Parked{fleet: f}
	devices, _ := f.lists()
	for _, m := range f.working() {
		held, err := m.iface.Park(ctx)
		if err != nil {
			return p, fmt.Errorf("interface %s: %w", m.Name(), err)
		}
		p.ifaces = append(p.ifaces, parkedInterface{m, held})
	}
	for _, d := range devices {
		held, err := d.Park(ctx)
		if err != nil {
			return p, fmt.Errorf("device %s: %w", d.name, err)
		}
		p.devices = append(p.devices, parkedDevice{Device: d, held: held})
	}
	for i := range p.devices {
		d := &p.devices[i]
		if err := d.Slot.Pause(); err != nil {
			return p, fmt.Errorf("device %s: %w", d.name, err)
		}
		d.paused = true
	}
	return p, nil
}

// Resume continues what was parked.
func (p *Parked) Resume() {
	for _, d := range p.devices {
		if d.paused {
			d.Slot.Resume()
		}
		d.held.Release()
	}
	for _, m := range p.ifaces {
		m.held.Resume()
	}
}

// Leave ends what was parked without an effect on what another process continues.
func (p *Parked) Leave() {
	for _, d := range p.devices {
		d.Slot.GiveUp()
	}
	for _, m := range p.ifaces {
		m.held.Leave()
	}
	for _, d := range p.devices {
		d.held.Release()
	}
}
