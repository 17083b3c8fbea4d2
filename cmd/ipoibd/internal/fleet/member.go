package fleet

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

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

// Device is a device with its HCA.
type Device struct {
	*device.Device
	name     string
	Slot     *backend.Slot
	portGUID hca.GUID
	lanes    int // of each of its interfaces
	fastPath bool
	busy     bool        // another process used the HCA, or its UDP port, or it did not work, when it was constructed
	run      routine     // of Run
	removed  atomic.Bool // by a change that is under way or complete
	before   counted     // by other processes
}

// makeDevice constructs a device with the given interfaces. With probe, it opens the HCA for a
// moment, so that a mistake, also in its interfaces, is reported at once. Without, the HCA must be
// present.
func (f *Fleet) makeDevice(
	ctx context.Context, c config.Device, interfaces []config.Interface, probe bool,
) (*Device, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(f.running, cancel)()
	slot, err := backend.New(ctx, c, backend.Options{
		AllowFaults: f.opts.AllowFaults, OpenRDMA: f.opts.OpenRDMA, FastPath: f.opts.FastPath, Log: f.opts.Log,
	})
	if err != nil {
		return nil, err
	}
	var users []string
	var ports []uint8
	for _, i := range interfaces {
		if i.Device == c.Name {
			users, ports = append(users, i.Name), append(ports, i.Port)
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
	return &Device{name: c.Name, Slot: slot, portGUID: guid, lanes: c.Lanes, fastPath: c.FastPath, busy: busy, Device: device.New(device.Config{
		Name: c.Name, Underlay: slot.Info().Underlay,
		Open: slot.Open, List: slot, Reset: slot.Reset, Complete: slot.Complete,
		Coordinator: sharing.Dir, Means: sharing.Means, Function: sharing.Function, NoReset: sharing.NoReset,
		Holders: sharing.Holders,
		Users:   strings.Join(users, ","), Grace: c.Grace, GiveUpAfter: c.GiveUpAfter, AllowForeign: c.AllowOtherDevice,
		Journal: f.opts.Journal, Log: f.opts.Log,
	})}, nil
}

func (d *Device) begin() {
	d.run = begin(func(ctx context.Context) { d.Slot.Run(ctx, d.Run) })
}

// Report returns the status of the device at the time now, with what other processes have counted.
func (d *Device) Report(now time.Time) report.Device {
	r, info := d.Device.Report(now), d.Slot.Info()
	r.HCA, r.Kind, r.Underlay, r.Reset = info.HCA, info.Kind, info.Underlay, string(info.Reset)
	r.Replicates, r.Peers = info.Peers != nil, append([]netip.Addr{}, info.Peers...)
	r.KnownPeersOnly = info.KnownPeersOnly
	r.Counters.Add("", info.Counters)
	d.before.addTo(&r)
	if r.State == report.DeviceOpen {
		r.Notices, r.Notice = append(r.Notices, info.Notices...), info.Notices.Text()
	}
	return r
}

// Interface is an interface with its device.
type Interface struct {
	iface   *iface.Iface
	device  *Device     // that it uses
	run     routine     // of Run
	removed atomic.Bool // by a change that is under way or complete
	failure error       // why it has ended by itself, or could not be rebuilt; nil: it has not
	runtime bool        // it was added at run time
}

// Namespace is the network namespace that a request to add an interface carried.
type Namespace struct {
	Interface string   // its name
	File      *os.File // nil: none
}

// makeInterface creates or adopts an interface.
func (f *Fleet) makeInterface(c config.Interface, d *Device, m Made) (*Interface, error) {
	i, err := iface.Open(c, d.portGUID, f.env(c.Name, d, m))
	if err != nil {
		return nil, err
	}
	return &Interface{iface: i, device: d}, nil
}

// moves reports whether the configuration gives an interface another place.
func moves(s config.Step[config.Interface]) bool {
	return s.Was.Netns != s.Is.Netns || s.Was.NetdevName() != s.Is.NetdevName()
}

// rebuild replaces an interface whose Run has ended. After an error its TAP is closed.
func (f *Fleet) rebuild(was *Interface, s config.Step[config.Interface], d *Device, m Made) (*Interface, error) {
	if moved := m.ifaces[s.Name]; moved != nil {
		if err := was.release(false); err != nil {
			return nil, errors.Join(err, moved.release(false))
		}
		return moved, nil
	}
	if was.device.lanes != d.lanes {
		if err := was.release(true); err != nil {
			return nil, err
		}
		return f.makeInterface(s.Is, d, m)
	}
	i, err := was.iface.Rebuild(s.Is, f.env(s.Name, d, m))
	if err != nil {
		return nil, err
	}
	return &Interface{iface: i, device: d}, nil
}

func (f *Fleet) env(name string, d *Device, m Made) iface.Env {
	env := iface.Env{
		Device: d.Device, Journal: f.opts.Journal, Log: f.opts.Log, Programs: f.opts.Programs, NoBPF: &f.noBPF,
		Lanes: d.lanes, Runtime: m.cfg.Runtime(name), Existing: m.cfg.Added[name].Existing,
	}
	if d.fastPath {
		env.FastPath = f.opts.FastPath
	}
	if name == m.in.Interface {
		env.Namespace = m.in.File
	}
	return env
}

// status returns the status of an interface, with what the interface itself does not know: that it
// was added at run time, and that it could not be rebuilt.
func (f *Fleet) status(m *Interface, now time.Time) report.Interface {
	s := m.iface.Status()
	s.Time = now.Add(s.Time.Sub(now)) // in a client, which lacks the monotonic clock, its age is right even if the clock was set
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Runtime = m.runtime
	if m.failure != nil && s.State != report.InterfaceFailed {
		s.State, s.Reason, s.Detail = report.InterfaceFailed, report.ReasonLost, m.failure.Error()
	}
	return s
}

// begin runs an interface. One that fails is closed at once, so that its name is free while others
// continue.
func (f *Fleet) begin(m *Interface) {
	m.run = begin(func(ctx context.Context) {
		err := m.iface.Run(ctx)
		if err != nil {
			f.opts.Log.Error("interface has failed", "interface", m.Name(), "err", err)
			f.failed(m, errors.Join(err, m.iface.Close()))
		}
	})
}

// failed records the failure of an interface. If no interface is left that works, the fleet is lost,
// unless this one was added at run time: pods end, and others come.
func (f *Fleet) failed(m *Interface, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m.failure = err
	if m.runtime {
		return
	}
	var all error
	for _, other := range f.ifaces {
		if other.failure == nil {
			return
		}
		all = errors.Join(all, other.failure)
	}
	f.opts.Lost(all)
}

// keeps reports whether an interface stays when the daemon stops. One that it created for an
// HCA that was never free has carried no traffic, and goes unless the host has configured it.
func (f *Fleet) keeps(m *Interface) bool {
	return !f.opts.Remove && (m.iface.Adopted() || !m.device.busy || m.device.Opens() > 0 || m.iface.Configured())
}

// release closes an interface, or deletes it.
func (m *Interface) release(keep bool) error {
	if keep {
		return m.iface.Close()
	}
	return m.iface.Delete()
}
