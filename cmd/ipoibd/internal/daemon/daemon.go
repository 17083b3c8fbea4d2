package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/link"
)

// stopLimit bounds an orderly end; what has not ended by then is left to the
// kernel.
const stopLimit = 10 * time.Second

// Options are what is not configuration.
type Options struct {
	Version string
	Remove  bool // delete the interfaces at the end
	Log     *slog.Logger
}

// daemon is what runs.
type daemon struct {
	opts    Options
	started time.Time
	devices []*softDevice
	ifaces  []*iface.Iface
	control *control.Server
}

// Run runs until ctx ends or an interface fails for good. It returns an error
// for what cannot be started, or cannot be ended in time.
func Run(ctx context.Context, cfg *config.Config, opts Options) error {
	d := &daemon{opts: opts, started: time.Now()}
	if err := d.construct(ctx, cfg); err != nil {
		return errors.Join(err, d.discard())
	}
	return d.serve(ctx)
}

func (d *daemon) construct(ctx context.Context, cfg *config.Config) (err error) {
	if d.control, err = control.Listen(cfg.Control, d.status); err != nil {
		return err
	}
	byName := map[string]*softDevice{}
	for _, c := range cfg.Devices {
		dev, err := newSoftDevice(ctx, c, d.opts.Log)
		if err != nil {
			return err
		}
		byName[c.Name] = dev
		d.devices = append(d.devices, dev)
	}
	for _, c := range cfg.Interfaces {
		dev := byName[c.Device]
		f, err := iface.Open(c, dev.Device, dev.portGUID, d.opts.Log)
		if err != nil {
			return fmt.Errorf("interface %s: %w", c.Name, err)
		}
		d.ifaces = append(d.ifaces, f)
	}
	return nil
}

// discard ends what construct made before it failed.
func (d *daemon) discard() error {
	var errs []error
	for _, f := range d.ifaces {
		errs = append(errs, f.Close())
	}
	for _, dev := range d.devices {
		errs = append(errs, dev.discard())
	}
	if d.control != nil {
		errs = append(errs, d.control.Close())
	}
	return errors.Join(errs...)
}

// serve runs everything until ctx ends, then stops it in order.
func (d *daemon) serve(ctx context.Context) error {
	failed := make(chan error, len(d.ifaces)+1)
	var ifaces, devices sync.WaitGroup
	ifaceCtx, stopIfaces := context.WithCancel(context.Background())
	devCtx, stopDevices := context.WithCancel(context.Background())
	defer stopIfaces()
	defer stopDevices()

	go func() {
		if err := d.control.Serve(); err != nil {
			failed <- fmt.Errorf("control socket: %w", err)
		}
	}()
	for _, dev := range d.devices {
		devices.Go(func() { dev.run(devCtx) })
	}
	for _, f := range d.ifaces {
		ifaces.Go(func() {
			if err := f.Run(ifaceCtx); err != nil {
				failed <- err
			}
		})
	}
	d.opts.Log.Info("running", "version", d.opts.Version, "interfaces", len(d.ifaces))

	err := waitEnd(ctx, failed)
	d.opts.Log.Info("stopping")
	return errors.Join(err, d.stop(
		func() { stopIfaces(); ifaces.Wait() },
		func() { stopDevices(); devices.Wait() },
	), d.control.Close())
}

func waitEnd(ctx context.Context, failed <-chan error) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-failed:
		return err
	}
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
		return d.remove()
	case <-time.After(stopLimit):
		return fmt.Errorf("could not stop within %s", stopLimit)
	}
}

func (d *daemon) remove() error {
	var errs []error
	for _, f := range d.ifaces {
		errs = append(errs, f.Close())
		if d.opts.Remove {
			errs = append(errs, link.Delete(f.Name()))
		}
	}
	return errors.Join(errs...)
}
