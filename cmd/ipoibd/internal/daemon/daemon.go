package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/power"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/hca"
)

// stopLimit bounds an orderly end; what has not ended by then is left to the
// kernel. Container runtimes kill after 10 s.
const stopLimit = 8 * time.Second

// Options are what is not configuration.
type Options struct {
	Version string
	Remove  bool // delete the interfaces at the end
	// AllowFaults lets the control socket inject faults.
	AllowFaults bool
	// LockMemory keeps the whole process in memory (R17).
	LockMemory bool
	// OpenHCA opens an RDMA device of the kernel by its name. Errors:
	// hca.ErrNoDevice, also where there is no way to.
	OpenHCA func(name string) (hca.Device, error)
	Log     *slog.Logger
}

// daemon is what runs.
type daemon struct {
	opts    Options
	started time.Time
	devices []*managed
	ifaces  []*iface.Iface
	control *control.Server
	journal *journal.Journal
	resting atomic.Bool // suspended by the operator
}

// Run runs until ctx ends or the last interface has failed. It returns an error
// for what cannot be started, has failed, or cannot be ended in time.
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

// memoryLevel is the level of the message that memory cannot be locked: a warning only with
// a real HCA, since a disk is hardly ever reached through a software HCA.
func memoryLevel(cfg *config.Config) slog.Level {
	if slices.ContainsFunc(cfg.Devices, func(c config.Device) bool { return c.HCA != config.SoftHCA }) {
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

func (d *daemon) construct(cfg *config.Config) (err error) {
	if d.control, err = control.Listen(cfg.Control, d); err != nil {
		return err
	}
	byName := map[string]*managed{}
	for _, c := range cfg.Devices {
		dev, err := d.newDevice(c, on(cfg, c.Name))
		if err != nil {
			return fmt.Errorf("device %s: %w", c.Name, err)
		}
		byName[c.Name] = dev
		d.devices = append(d.devices, dev)
	}
	for _, c := range cfg.Interfaces {
		dev := byName[c.Device]
		f, err := iface.Open(c, dev.portGUID, iface.Env{Device: dev.Device, Journal: d.journal, Log: d.opts.Log})
		if err != nil {
			return fmt.Errorf("interface %s: %w", c.Name, err)
		}
		d.ifaces = append(d.ifaces, f)
	}
	return nil
}

// on returns the interfaces of a device.
func on(cfg *config.Config, device string) []config.Interface {
	return slices.DeleteFunc(slices.Clone(cfg.Interfaces), func(f config.Interface) bool { return f.Device != device })
}

// discard undoes what construct did before it failed: interfaces that were not
// there before go again.
func (d *daemon) discard() error {
	var errs []error
	for _, f := range d.ifaces {
		if f.Adopted() {
			errs = append(errs, f.Close())
		} else {
			errs = append(errs, f.Delete())
		}
	}
	for _, dev := range d.devices {
		errs = append(errs, dev.slot.Close())
	}
	if d.control != nil {
		errs = append(errs, d.control.Close())
	}
	return errors.Join(errs...)
}

// parts are the goroutines of a daemon that serves.
type parts struct {
	ifaces, devices sync.WaitGroup
	ended           chan error    // what an interface ended with, nil too
	broken          chan error    // the control socket's error
	shutdown        chan struct{} // closed when the system shuts down
	stopped         chan struct{} // closed when the fabric is not used any more
}

// serve runs everything until ctx ends, then stops it in order.
func (d *daemon) serve(ctx context.Context) error {
	p := parts{
		ended: make(chan error, len(d.ifaces)), broken: make(chan error, 1),
		shutdown: make(chan struct{}), stopped: make(chan struct{}),
	}
	defer d.watchPower(&p)()
	ifaceCtx, stopIfaces := context.WithCancel(context.Background())
	devCtx, stopDevices := context.WithCancel(context.Background())
	defer stopIfaces()
	defer stopDevices()
	d.start(&p, ifaceCtx, devCtx)
	d.opts.Log.Info("running", "version", d.opts.Version, "interfaces", len(d.ifaces))
	err := d.waitEnd(ctx, &p)
	d.opts.Log.Info("stopping")
	defer close(p.stopped)
	return errors.Join(err, d.stop(
		func() { stopIfaces(); p.ifaces.Wait() },
		func() { stopDevices(); p.devices.Wait() },
	), d.control.Close())
}

func (d *daemon) start(p *parts, ifaces, devices context.Context) {
	go func() { p.broken <- d.control.Serve() }()
	for _, dev := range d.devices {
		p.devices.Go(func() { dev.slot.Run(devices, dev.Run) })
	}
	for _, f := range d.ifaces {
		p.ifaces.Go(func() { p.ended <- d.runInterface(ifaces, f) })
	}
}

// runInterface gives the TAP of an interface that has failed up at once, so that
// its name is free while others go on.
func (d *daemon) runInterface(ctx context.Context, f *iface.Iface) error {
	err := f.Run(ctx)
	if err != nil {
		d.opts.Log.Error("interface has failed", "interface", f.Name(), "err", err)
		err = errors.Join(err, f.Close())
	}
	return err
}

// watchPower follows the system's sleep and shutdown (R26) until what it returns
// is called, which is after the fabric is not used any more: the system waits
// for that.
func (d *daemon) watchPower(p *parts) (end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var watcher sync.WaitGroup
	hooks := power.Hooks{Suspend: d.sleep, Resume: d.wake, Stop: func() {
		close(p.shutdown)
		<-p.stopped
	}}
	watcher.Go(func() { power.Watch(ctx, hooks, d.opts.Log) })
	return func() {
		cancel()
		watcher.Wait()
	}
}

// waitEnd waits until ctx, the system or the control socket ends, or no interface
// is left.
func (d *daemon) waitEnd(ctx context.Context, p *parts) error {
	var errs []error
	for range d.ifaces {
		select {
		case <-ctx.Done():
			return nil
		case <-p.shutdown:
			return nil
		case err := <-p.broken:
			return fmt.Errorf("control socket: %w", err)
		case err := <-p.ended:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// stop runs the phases in order, all within stopLimit.
func (d *daemon) stop(phases ...func()) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, phase := range phases {
			phase()
		}
	}()
	select {
	case <-done:
		return d.release()
	case <-time.After(stopLimit):
		return fmt.Errorf("could not stop within %s", stopLimit)
	}
}

// release gives the interfaces up, or takes them away where that is wanted.
func (d *daemon) release() error {
	var errs []error
	for _, f := range d.ifaces {
		if d.opts.Remove {
			errs = append(errs, f.Delete())
		} else {
			errs = append(errs, f.Close())
		}
	}
	return errors.Join(errs...)
}
