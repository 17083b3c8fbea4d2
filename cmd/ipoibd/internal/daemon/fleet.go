package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/hca"
)

// fleet is the set of devices and interfaces. Only the holder of daemon.changing changes the lists.
// It replaces them as a whole, so that a reader's copies of them are consistent.
type fleet struct {
	mu      sync.Mutex // guards what follows, and failure and runtime of members
	devices []*managed
	ifaces  []*member
	asleep  bool // the devices are suspended, and new ones begin so
}

// lists returns the devices and interfaces, in the order of the configuration.
func (f *fleet) lists() ([]*managed, []*member) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.devices, f.ifaces
}

// device returns the device of a name, or nil.
func (f *fleet) device(name string) *managed {
	devices, _ := f.lists()
	if i := slices.IndexFunc(devices, func(d *managed) bool { return d.name == name }); i >= 0 {
		return devices[i]
	}
	return nil
}

// iface returns the interface of a name, or nil.
func (f *fleet) iface(name string) *member {
	_, ifaces := f.lists()
	if i := slices.IndexFunc(ifaces, func(m *member) bool { return m.Name() == name }); i >= 0 {
		return ifaces[i]
	}
	return nil
}

// routine is a goroutine that ends when it is stopped, or by itself.
type routine struct {
	stop  context.CancelFunc
	ended chan struct{}
}

func begin(do func(context.Context)) routine {
	ctx, stop := context.WithCancel(context.Background())
	r := routine{stop, make(chan struct{})}
	go func() {
		defer close(r.ended)
		do(ctx)
	}()
	return r
}

// managed is a device with its HCA.
type managed struct {
	*device.Device
	name     string
	slot     *backend.Slot
	portGUID hca.GUID
	busy     bool    // another process used the HCA, or its UDP port, or it did not work, when it was constructed
	run      routine // of Run
	before   counted // by other processes
}

// newDevice constructs a device with the given interfaces. With probe, it opens the HCA for a
// moment, so that a mistake, also in its interfaces, is reported at once. Without, the HCA must be
// present.
func (d *daemon) newDevice(ctx context.Context, c config.Device, interfaces []config.Interface, probe bool) (*managed, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(d.running, cancel)()
	slot, err := backend.New(ctx, c, backend.Options{AllowFaults: d.opts.AllowFaults, OpenRDMA: d.opts.OpenRDMA, Log: d.opts.Log})
	if err != nil {
		return nil, err
	}
	var users []string
	var ports []uint8
	for _, f := range interfaces {
		if f.Device == c.Name {
			users, ports = append(users, f.Name), append(ports, f.Port)
		}
	}
	var guid hca.GUID
	if probe {
		guid, err = slot.Probe(ports...)
	} else {
		guid, err = slot.Look()
	}
	busy := errors.Is(err, backend.ErrBusy) || errors.Is(err, backend.ErrBroken) // the device tries again
	if err != nil && !busy {
		return nil, errors.Join(err, slot.Close())
	}
	sharing := slot.Sharing()
	return &managed{name: c.Name, slot: slot, portGUID: guid, busy: busy, Device: device.New(device.Config{
		Name: c.Name, Underlay: slot.Info().Underlay, Open: slot.Open, List: slot, Reset: slot.Reset, Complete: slot.Complete,
		Coordinator: sharing.Dir, Means: sharing.Means, Function: sharing.Function, NoReset: sharing.NoReset, Holders: sharing.Holders,
		Users: strings.Join(users, ","), Grace: c.Grace, GiveUpAfter: c.GiveUpAfter, AllowForeign: c.AllowOtherDevice,
		Journal: d.journal, Log: d.opts.Log,
	})}, nil
}

func (dev *managed) begin() {
	dev.run = begin(func(ctx context.Context) { dev.slot.Run(ctx, dev.Run) })
}

// member is an interface with the device that it uses.
type member struct {
	*iface.Iface
	device  *managed
	run     routine // of Run
	failure error   // why it has ended by itself, or could not be rebuilt; nil: it has not
	runtime bool    // it was added at run time
}

// newInterface creates or adopts an interface.
func (d *daemon) newInterface(c config.Interface, dev *managed) (*member, error) {
	env := d.env(dev)
	if c.Name == d.passed.name {
		env.Namespace = d.passed.namespace
	}
	f, err := iface.Open(c, dev.portGUID, env)
	if err != nil {
		return nil, err
	}
	return &member{Iface: f, device: dev}, nil
}

// rebuild replaces an interface whose Run has ended. After an error its TAP is closed.
func (d *daemon) rebuild(was *member, s config.Step[config.Interface], dev *managed) (*member, error) {
	moves := s.Was.Netns != s.Is.Netns || s.Was.NetdevName() != s.Is.NetdevName()
	if moves || s.Was.Lanes != s.Is.Lanes {
		if err := was.release(!moves); err != nil {
			return nil, err
		}
		return d.newInterface(s.Is, dev)
	}
	f, err := was.Rebuild(s.Is, d.env(dev))
	if err != nil {
		return nil, err
	}
	return &member{Iface: f, device: dev}, nil
}

func (d *daemon) env(dev *managed) iface.Env {
	return iface.Env{Device: dev.Device, Journal: d.journal, Log: d.opts.Log, Programs: d.opts.Programs, NoBPF: &d.noBPF}
}

// begin runs an interface. One that fails is closed at once, so that its name is free while others
// continue.
func (d *daemon) begin(m *member) {
	m.run = begin(func(ctx context.Context) {
		err := m.Run(ctx)
		if err != nil {
			d.opts.Log.Error("interface has failed", "interface", m.Name(), "err", err)
			d.failed(m, errors.Join(err, m.Close()))
		}
	})
}

// failed records the failure of an interface. If no interface is left that works, the daemon ends,
// unless this one was added at run time: pods end, and others come.
func (d *daemon) failed(m *member, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	m.failure = err
	if m.runtime {
		return
	}
	var all error
	for _, other := range d.ifaces {
		if other.failure == nil {
			return
		}
		all = errors.Join(all, other.failure)
	}
	d.end(all)
}

// keeps reports whether an interface stays when the daemon stops. One that it created for an
// HCA that was never free has carried no traffic, and goes unless the host has configured it.
func (d *daemon) keeps(m *member) bool {
	return !d.opts.Remove && (m.Adopted() || !m.device.busy || m.device.Opens() > 0 || m.Configured())
}

// release closes an interface, or deletes it.
func (m *member) release(keep bool) error {
	if keep {
		return m.Close()
	}
	return m.Delete()
}

// made are devices and interfaces that do not run yet.
type made struct {
	devices map[string]*managed
	ifaces  map[string]*member
}

// discard undoes what was made. Only interfaces that existed before remain.
func (m made) discard() (err error) {
	for _, f := range m.ifaces {
		err = errors.Join(err, f.release(f.Adopted()))
	}
	for _, dev := range m.devices {
		err = errors.Join(err, dev.slot.Close())
	}
	return err
}

// prepare makes what a plan adds, and devices for those that it rebuilds, and changes nothing else.
// After an error, what was made must be discarded.
func (d *daemon) prepare(ctx context.Context, p config.Plan, was, is *config.Config) (m made, err error) {
	m = made{map[string]*managed{}, map[string]*member{}}
	for _, s := range p.Devices {
		if ctx.Err() != nil {
			return m, context.Cause(ctx)
		}
		if s.Change != config.Added && s.Change != config.Rebuilt {
			continue
		}
		// What this daemon has open itself cannot be probed.
		probe := !slices.ContainsFunc(was.Devices, func(c config.Device) bool { return c.Claims(&s.Is) })
		dev, err := d.newDevice(ctx, s.Is, is.Interfaces, probe)
		if err != nil {
			return m, fmt.Errorf("device %s: %w", s.Name, err)
		}
		m.devices[s.Name] = dev
	}
	for _, s := range p.Interfaces {
		if ctx.Err() != nil {
			return m, context.Cause(ctx)
		}
		switch s.Change {
		case config.Added:
			f, err := d.newInterface(s.Is, m.on(d, s.Is))
			if err != nil {
				return m, fmt.Errorf("interface %s: %w", s.Name, err)
			}
			m.ifaces[s.Name] = f
		case config.Rebuilt:
			if s.Was.Lanes != s.Is.Lanes && d.iface(s.Name).Elsewhere() {
				return m, fmt.Errorf("interface %s: the number of its lanes cannot change while it has another name or is in another network namespace; move it back, or keep the number", s.Name)
			}
		case config.Kept, config.Changed, config.Removed:
		}
	}
	return m, nil
}

// on returns the device of an interface, a new one if there is one.
func (m made) on(d *daemon, c config.Interface) *managed {
	if dev := m.devices[c.Device]; dev != nil {
		return dev
	}
	return d.device(c.Device)
}
