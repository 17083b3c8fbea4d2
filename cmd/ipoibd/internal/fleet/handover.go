package fleet

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
	"ipoibd/link/kernel"
	"ipoibd/qprecovery"
)

// State is what one process hands over to another, with descriptors: those of devices and then those of interfaces,
// FDs of each. Both lists are in the order of the configuration.
type State struct {
	Asleep     bool // the devices are suspended
	Devices    []DeviceState
	Interfaces []InterfaceState
}

// DeviceState is the state of a device.
type DeviceState struct {
	FDs    int
	HCA    backend.Handed
	Before counted
	Ladder qprecovery.HandedDevice
}

// InterfaceState is the state of an interface.
type InterfaceState struct {
	FDs   int
	State iface.State
}

// Descriptors returns how many descriptors come with the state.
func (s *State) Descriptors() (n int) {
	for _, d := range s.Devices {
		n += d.FDs
	}
	for _, i := range s.Interfaces {
		n += i.FDs
	}
	return n
}

// counted is what processes have counted of a device.
type counted struct {
	Counters report.Totals
	Drops    uint64
	Opens    uint64
	Recovery *report.Recovery
}

// addTo adds the counts to a report of the device.
func (c *counted) addTo(r *report.Device) {
	r.Counters.AddTotals(c.Counters)
	r.Drops += c.Drops
	r.Opens += c.Opens
	r.Recovery = r.Recovery.After(c.Recovery)
}

// State returns the state of everything that was parked, with descriptors, which the caller closes, also after an
// error.
func (f *Fleet) State(p *Parked) (s State, fds []int, err error) {
	s.Interfaces = make([]InterfaceState, len(p.ifaces))
	ofIfaces, errs := make([][]int, len(p.ifaces)), make([]error, len(p.ifaces))
	var all sync.WaitGroup
	for i, held := range p.ifaces {
		all.Go(func() {
			s.Interfaces[i].State, ofIfaces[i], errs[i] = held.State()
			s.Interfaces[i].FDs = len(ofIfaces[i])
		})
	}
	all.Wait()
	for _, d := range p.devices { // after the interfaces, whose last messages it has sent
		r := d.Report(time.Now())
		x := DeviceState{Before: counted{report.TotalsOf(r.Counters), r.Drops, r.Opens, r.Recovery.Past()}, Ladder: d.Ladder}
		var own []int
		x.HCA, own, err = d.Slot.HandOver()
		errs = append(errs, err)
		x.FDs, fds = len(own), append(fds, own...)
		s.Devices = append(s.Devices, x)
	}
	for _, own := range ofIfaces {
		fds = append(fds, own...)
	}
	f.mu.Lock()
	s.Asleep = f.asleep
	f.mu.Unlock()
	return s, fds, errors.Join(errs...)
}

// Inherit makes everything that another process runs by a configuration, with its descriptors, which it owns from then
// on. Nothing of it runs yet. After an error, part of it is made; Close closes it.
func (f *Fleet) Inherit(cfg *config.Config, s State, fds []int) (m Made, err error) {
	m = Made{devices: map[string]*Device{}, ifaces: map[string]*Interface{}, asleep: s.Asleep}
	rest := kernel.Portions{FDs: fds}
	defer rest.Close()
	for n, c := range cfg.Devices {
		own, err := rest.Next(s.Devices[n].FDs)
		if err != nil {
			return m, err
		}
		if err := f.inheritDevice(m, c, cfg, s, s.Devices[n], own); err != nil {
			return m, fmt.Errorf("device %s: %w", c.Name, err)
		}
	}
	for n, c := range cfg.Interfaces {
		own, err := rest.Next(s.Interfaces[n].FDs)
		if err != nil {
			return m, err
		}
		d := m.devices[c.Device]
		i, err := iface.Inherit(c, s.Interfaces[n].State, own, f.env(d))
		if err != nil {
			return m, fmt.Errorf("interface %s: %w", c.Name, err)
		}
		m.ifaces[c.Name] = &Interface{Iface: i, device: d}
	}
	return m, nil
}

// inheritDevice makes a device that continues one of the other process, and waits for the queue pairs of
// its interfaces.
func (f *Fleet) inheritDevice(m Made, c config.Device, cfg *config.Config, s State, e DeviceState, fds []int) error {
	d, err := f.newDevice(f.running, c, cfg.Interfaces, false)
	if err != nil {
		kernel.CloseAll(fds)
		return err
	}
	m.devices[c.Name] = d
	var await []hca.QPN
	for n, i := range cfg.Interfaces {
		if qpn := s.Interfaces[n].State.QPN; i.Device == c.Name && qpn != 0 {
			await = append(await, qpn)
		}
	}
	d.before = e.Before
	d.Inherit(e.Ladder)
	return d.Slot.Inherit(e.HCA, fds, await)
}

// Close closes everything that was inherited, without an effect on what the other process continues.
func (m Made) Close() (err error) {
	for _, i := range m.ifaces {
		err = errors.Join(err, i.Close())
	}
	for _, d := range m.devices {
		err = errors.Join(err, d.Slot.Close())
	}
	return err
}

// Up reports whether all interfaces are up again that were up when the state was taken.
func (m Made) Up(cfg *config.Config, s State) bool {
	for n, c := range cfg.Interfaces {
		if s.Interfaces[n].State.QPN != 0 && !m.ifaces[c.Name].Works() {
			return false
		}
	}
	return true
}

// Settled ends the other process's memberships, once the interfaces have joined their groups ([backend.Slot.Settled]).
func (m Made) Settled() {
	for _, d := range m.devices {
		d.Slot.Settled()
	}
}
