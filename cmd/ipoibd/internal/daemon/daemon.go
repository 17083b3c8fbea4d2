// Package daemon constructs devices, interfaces and the control socket from a configuration,
// and stops them in order within 8 s: interfaces before devices (children before their
// ports), the control socket last.
//
// If a start fails, interfaces that it created are removed, and those that existed before are
// kept. The same holds at the stop if an HCA could never be opened because another process used
// it, or its UDP port, except for interfaces that the host has configured. A running daemon
// continues as long as one interface works. The status shows an interface that was deleted or
// moved out of reach as failed, with the reason.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/power"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/hca"
)

// stopLimit bounds an orderly stop; the kernel cleans up the rest. Container runtimes kill
// after 10 s.
const stopLimit = 8 * time.Second

// Options are the settings that only the command line has.
type Options struct {
	Version     string
	Remove      bool // delete the interfaces when the daemon stops
	AllowFaults bool // the control socket may inject faults
	LockMemory  bool // keep the whole process in memory (R17)
	// OpenRDMA opens an RDMA device of the kernel by its name. It returns hca.ErrNoDevice if
	// there is none, or no way to open it.
	OpenRDMA func(name string) (hca.Device, error)
	Log      *slog.Logger
}

// daemon is a running daemon.
type daemon struct {
	opts    Options
	started time.Time
	devices []*managed
	ifaces  []*iface.Iface
	control *control.Server
	journal *journal.Journal
	resting atomic.Bool // suspended by the operator
	noBPF   sync.Once   // logs that eBPF is not available
}

// managed is a device with its HCA.
type managed struct {
	*device.Device
	name     string
	slot     *backend.Slot
	portGUID hca.GUID
	busy     bool // another process used the HCA, or its UDP port, when the daemon started
}

// Run runs until ctx ends, the system shuts down, or the last interface has failed. Its error
// joins the failures to start, failures while running, and failures to stop in time.
func Run(ctx context.Context, cfg *config.Config, opts Options) error {
	d := &daemon{opts: opts, started: time.Now(), journal: journal.New()}
	if err := d.construct(cfg); err != nil {
		return errors.Join(err, d.discard())
	}
	if opts.LockMemory { // after construct, so that a mistake is reported at once and alone
		if err := process.LockMemory(); err != nil {
			opts.Log.Log(ctx, memoryLevel(cfg), "cannot lock memory", "err", err)
		}
	}
	return d.serve(ctx)
}

// memoryLevel is the level of the message that memory cannot be locked: a warning only if a
// disk may be reached through one of the HCAs.
func memoryLevel(cfg *config.Config) slog.Level {
	if slices.ContainsFunc(cfg.Devices, backend.CarriesStorage) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (d *daemon) construct(cfg *config.Config) (err error) {
	if d.control, err = control.Listen(cfg.Control, d); err != nil {
		return err
	}
	for _, c := range cfg.Devices {
		dev, err := d.newDevice(c, cfg.Interfaces)
		if err != nil {
			return fmt.Errorf("device %s: %w", c.Name, err)
		}
		d.devices = append(d.devices, dev)
	}
	for _, c := range cfg.Interfaces {
		dev := d.device(c.Device)
		f, err := iface.Open(c, dev.portGUID, iface.Env{Device: dev.Device, Journal: d.journal, Log: d.opts.Log, NoBPF: &d.noBPF})
		if err != nil {
			return fmt.Errorf("interface %s: %w", c.Name, err)
		}
		d.ifaces = append(d.ifaces, f)
	}
	return nil
}

// newDevice opens the HCA for a moment, so that a mistake, also in its interfaces, is reported
// at once.
func (d *daemon) newDevice(c config.Device, interfaces []config.Interface) (*managed, error) {
	slot, err := backend.New(c, backend.Options{AllowFaults: d.opts.AllowFaults, OpenRDMA: d.opts.OpenRDMA, Log: d.opts.Log})
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
	guid, err := slot.Probe(ports...)
	busy := errors.Is(err, backend.ErrBusy) // the device tries again
	if err != nil && !busy {
		return nil, errors.Join(err, slot.Close())
	}
	sharing := slot.Sharing()
	return &managed{name: c.Name, slot: slot, portGUID: guid, busy: busy, Device: device.New(device.Config{
		Name: c.Name, Underlay: slot.Info().Underlay, Open: slot.Open, List: slot, Reset: slot.Reset, Complete: slot.Complete,
		Coordinator: sharing.Dir, Means: sharing.Means, Holders: sharing.Holders,
		Users: strings.Join(users, ","), Grace: c.Grace, GiveUpAfter: c.GiveUpAfter, AllowForeign: c.AllowOtherDevice,
		Journal: d.journal, Log: d.opts.Log,
	})}, nil
}

// discard undoes what construct did before it failed. Only interfaces that existed before
// remain.
func (d *daemon) discard() error {
	errs := []error{d.release((*iface.Iface).Adopted)}
	for _, dev := range d.devices {
		errs = append(errs, dev.slot.Close())
	}
	if d.control != nil {
		errs = append(errs, d.control.Close())
	}
	return errors.Join(errs...)
}

// keeps reports whether an interface stays when the daemon stops. One that it created for an
// HCA that was never free has carried no traffic, and goes unless the host has configured it.
func (d *daemon) keeps(f *iface.Iface) bool {
	dev := d.device(f.DeviceName())
	return !d.opts.Remove && (f.Adopted() || !dev.busy || dev.Opens() > 0 || f.Configured())
}

// release closes the interfaces to keep, and deletes the others.
func (d *daemon) release(keep func(*iface.Iface) bool) (err error) {
	for _, f := range d.ifaces {
		end := f.Delete
		if keep(f) {
			end = f.Close
		}
		err = errors.Join(err, end())
	}
	return err
}

// serve runs everything until ctx ends, the system shuts down, the control socket breaks, or
// every interface has ended, then stops it in order. The system may sleep or shut down once the
// fabric is no longer used (R26).
func (d *daemon) serve(ctx context.Context) error {
	ifaceCtx, stopIfaces := context.WithCancel(context.Background())
	devCtx, stopDevices := context.WithCancel(context.Background())
	powerCtx, stopPower := context.WithCancel(context.Background())
	defer stopIfaces()
	defer stopDevices()
	var ifaces, devices, watcher sync.WaitGroup
	running, end := context.WithCancelCause(ctx)
	stopped := make(chan struct{})
	watcher.Go(func() {
		power.Watch(powerCtx, power.Hooks{Suspend: d.sleep, Resume: d.wake, Stop: func(context.Context) error { end(nil); <-stopped; return nil }}, d.opts.Log)
	})
	defer watcher.Wait()
	defer stopPower()
	defer close(stopped)

	go func() { end(fmt.Errorf("control socket: %w", d.control.Serve())) }()
	for _, dev := range d.devices {
		devices.Go(func() { dev.slot.Run(devCtx, dev.Run) })
	}
	failures := make([]error, len(d.ifaces))
	for i, f := range d.ifaces {
		ifaces.Go(func() {
			err := f.Run(ifaceCtx)
			if err != nil {
				d.opts.Log.Error("interface has failed", "interface", f.Name(), "err", err)
				err = errors.Join(err, f.Close()) // at once, so that its name is free while others continue
			}
			failures[i] = err
		})
	}
	go func() {
		ifaces.Wait()
		end(errors.Join(failures...))
	}()
	d.opts.Log.Info("running", "version", d.opts.Version, "interfaces", len(d.ifaces))
	<-running.Done()
	err := context.Cause(running)
	if ctx.Err() != nil || errors.Is(err, context.Canceled) { // as ordered, or by the system's shutdown
		err = nil
	}
	d.opts.Log.Info("stopping")

	done := make(chan struct{})
	go func() {
		defer close(done)
		stopIfaces()
		ifaces.Wait()
		stopDevices()
		devices.Wait()
	}()
	select {
	case <-done:
		err = errors.Join(err, d.release(d.keeps))
	case <-time.After(stopLimit):
		err = errors.Join(err, fmt.Errorf("did not stop within %s", stopLimit))
	}
	return errors.Join(err, d.control.Close())
}
