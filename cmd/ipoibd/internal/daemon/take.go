package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/metrics"
	"ipoibd/cmd/ipoibd/internal/power"
	"ipoibd/link/kernel"
)

// serveLimit bounds how long the control socket and the metrics are not served after a hand-over,
// because the interfaces that were up are not up again yet. It takes milliseconds. Meanwhile, clients
// wait to be accepted.
const serveLimit = time.Second

// goneTries and gonePause bound the attempts to take over from a daemon that ends just then.
const (
	goneTries = 5
	gonePause = 50 * time.Millisecond
)

// takeOver takes over from the daemon that answers on the control socket, and runs what that daemon ran,
// with its configuration. It returns false if no daemon answers. After an error nothing has changed.
func (d *daemon) takeOver(ctx context.Context, cfg *config.Config) (taken bool, err error) {
	d.lockMemory(cfg) // before the other daemon stops
	for try := 1; ; try++ {
		taken, err = d.tryTakeOver(ctx, cfg)
		if err == nil || ctx.Err() != nil {
			return taken, err
		}
		if !errors.Is(err, handover.ErrGone) || try == goneTries {
			return false, fmt.Errorf("%w; if that persists, stop the running daemon and start this one without --take-over, which interrupts traffic for a moment", err)
		}
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("take over: %w", ctx.Err())
		case <-time.After(gonePause): // another one may be starting in its place
		}
	}
}

// tryTakeOver is one attempt of takeOver. ErrGone: the other daemon ended before it made an offer.
func (d *daemon) tryTakeOver(ctx context.Context, cfg *config.Config) (taken bool, err error) {
	conn, err := control.AskHandOver(ctx, cfg.Control)
	if errors.Is(err, control.ErrNotRunning) {
		d.opts.Log.Info("no daemon answers on the control socket; starting without a take-over")
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take over: %w", err)
	}
	t, err := handover.Take(ctx, conn)
	if err != nil {
		return false, fmt.Errorf("take over: %w", err)
	}
	x, err := d.inherit(t, cfg)
	if err != nil {
		t.Fail()
	} else {
		err = t.Own(ctx)
	}
	if err != nil {
		return false, errors.Join(fmt.Errorf("take over: %w", err), x.close())
	}
	d.begins(x, cfg)
	return true, nil
}

// inheritance is what was made from an estate. Nothing of it runs yet.
type inheritance struct {
	made      fleet.Made
	estate    estate
	plan      config.Plan
	control   *control.Server
	metrics   *metrics.Server
	inhibitor *power.Inhibitor
}

// close closes everything, without an effect on what the other process continues.
func (x *inheritance) close() error {
	err := x.made.Close()
	if x.inhibitor != nil {
		x.inhibitor.Release()
	}
	if x.metrics != nil {
		err = errors.Join(err, x.metrics.Close())
	}
	if x.control != nil {
		err = errors.Join(err, x.control.Close())
	}
	return err
}

// inherit makes everything that the other daemon runs. After an error, part of it is made.
func (d *daemon) inherit(t *handover.Taker, own *config.Config) (x *inheritance, err error) {
	x = &inheritance{}
	rest := &kernel.Portions{FDs: t.FDs}
	defer rest.Close()
	e := &x.estate
	if err := errors.Join(e.decode(t.State), e.check(own)); err != nil {
		return x, fmt.Errorf("the state of the running daemon: %w", err)
	}
	fds, err := rest.Next(1)
	if err != nil {
		return x, err
	}
	if x.control, err = control.Inherit(own.Control, fds[0], d); err != nil {
		return x, err
	}
	if err := d.inheritMetrics(x, own, rest); err != nil {
		return x, err
	}
	e.Config.Sandbox = own.Sandbox // each process has its own
	if d.opts.Admit != nil {
		if err := d.opts.Admit(&e.Config); err != nil {
			return x, err
		}
	}
	if x.plan, err = config.MakePlan(&config.Config{Control: e.Config.Control, MetricsListen: e.Config.MetricsListen, Sandbox: e.Config.Sandbox}, &e.Config); err != nil {
		return x, err
	}
	if fds, err = rest.Next(e.Descriptors()); err != nil {
		return x, err
	}
	if x.made, err = d.fleet.Inherit(&e.Config, e.State, fds); err != nil {
		return x, err
	}
	fds, err = rest.Next(e.Inhibitors)
	x.inhibitor = power.Inherit(fds)
	return x, err
}

// decode decodes the state that another version may have sent. It ignores unknown fields, and uses defaults for
// missing ones of a device or an interface.
func (e *estate) decode(text []byte) error {
	var lists struct {
		Config struct{ Devices, Interfaces []json.RawMessage }
	}
	if err := errors.Join(json.Unmarshal(text, e), json.Unmarshal(text, &lists)); err != nil {
		return err
	}
	for i, one := range lists.Config.Devices {
		e.Config.Devices[i] = config.NewDevice()
		if err := json.Unmarshal(one, &e.Config.Devices[i]); err != nil {
			return err
		}
	}
	for i, one := range lists.Config.Interfaces {
		e.Config.Interfaces[i] = config.NewInterface()
		if err := json.Unmarshal(one, &e.Config.Interfaces[i]); err != nil {
			return err
		}
	}
	return nil
}

// check checks the configuration of an estate.
func (e *estate) check(own *config.Config) error {
	if err := e.Config.Validate(); err != nil {
		return err
	}
	switch {
	case e.Config.Control != own.Control:
		return fmt.Errorf("its control socket is %s, not %s", e.Config.Control, own.Control)
	case len(e.Devices) != len(e.Config.Devices), len(e.Interfaces) != len(e.Config.Interfaces):
		return fmt.Errorf("%d devices and %d interfaces for a configuration with %d and %d", len(e.Devices), len(e.Interfaces), len(e.Config.Devices), len(e.Config.Interfaces))
	}
	return nil
}

// inheritMetrics continues the listener of the metrics, unless this process has another address.
func (d *daemon) inheritMetrics(x *inheritance, own *config.Config, rest *kernel.Portions) (err error) {
	var fds []int
	if x.estate.Metrics {
		if fds, err = rest.Next(1); err != nil {
			return err
		}
	}
	same := own.MetricsListen == x.estate.Config.MetricsListen
	x.estate.Config.MetricsListen = own.MetricsListen
	switch {
	case same && len(fds) > 0:
		x.metrics, err = metrics.Inherit(fds[0], d.Status)
		return err
	case own.MetricsListen != "":
		x.metrics, err = metrics.Listen(own.MetricsListen, d.Status)
	}
	kernel.CloseAll(fds)
	return err
}

// begins begins to run what was inherited. This process, whose own configuration is own, owns it now.
func (d *daemon) begins(x *inheritance, own *config.Config) {
	d.control, d.metrics, d.inhibitor = x.control, x.metrics, x.inhibitor
	d.control.Own()
	d.journal.Restore(x.estate.Journal)
	d.resting.Store(x.estate.Resting)
	d.fleet.Commit(x.plan, x.made)
	d.cfg, d.left = &x.estate.Config, x.estate.Left
	if next, err := own.WithRuntimeOf(d.cfg); err != nil || !d.runs(next) {
		d.own = own
	}
	if err := x.estate.Systemd.Inherit(); err != nil {
		d.opts.Log.Warn("systemd: cannot take over the reports to systemd, so its watchdog may restart the service", "err", err)
	}
	began := time.Now()
	for !x.made.Up(d.cfg, x.estate.State) && time.Since(began) < serveLimit && d.running.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	x.made.Settled()
	d.opts.Log.Info("taken over", "interfaces", len(d.cfg.Interfaces), "up_after", time.Since(began))
	d.journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: fmt.Sprintf("taken over, now version %s", d.opts.Version)})
}

// runs reports whether a configuration is the one that runs.
func (d *daemon) runs(cfg *config.Config) bool {
	p, err := config.MakePlan(d.cfg, cfg)
	return err == nil &&
		!slices.ContainsFunc(p.Devices, func(s config.Step[config.Device]) bool { return s.Change != config.Kept }) &&
		!slices.ContainsFunc(p.Interfaces, func(s config.Step[config.Interface]) bool { return s.Change != config.Kept })
}

// applyOwn applies the configuration with which this process was started, as a reload does.
func (d *daemon) applyOwn() {
	result, err := d.change(d.running, d.own.WithRuntimeOf)
	if err = errors.Join(err, result.Err()); err != nil && d.running.Err() == nil {
		d.opts.Log.Error("parts of this daemon's configuration cannot be applied, so the former daemon's settings stay there; correct the configuration and reload it", "err", err)
	}
}
