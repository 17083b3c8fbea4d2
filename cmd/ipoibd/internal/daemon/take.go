package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/metrics"
	"ipoibd/cmd/ipoibd/internal/power"
	"ipoibd/link/kernel/capsule"
)

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
			return false, fmt.Errorf("%w; if that persists, stop the running daemon and start this one without "+
				"--take-over, which interrupts traffic for a moment", err)
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
	x, err := d.inherit(t.Capsule, cfg)
	t.Capsule.Close()
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

// inheritance is what was made from a capsule. Nothing of it runs yet.
type inheritance struct {
	made      fleet.Made
	handed    handed
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
func (d *daemon) inherit(r *capsule.Reader, own *config.Config) (x *inheritance, err error) {
	x = &inheritance{}
	h := &x.handed
	if err = r.Value("daemon", h); err == nil {
		err = h.check(own)
	}
	if err != nil {
		return x, fmt.Errorf("the state of the running daemon: %w", err)
	}
	if x.control, err = control.Import(own.Control, r, d.controlled()); err != nil {
		return x, err
	}
	switch own.MetricsListen {
	case "":
	case h.Config.MetricsListen:
		x.metrics, err = metrics.Import(r, d.status)
	default:
		x.metrics, err = metrics.Listen(own.MetricsListen, d.status)
	}
	if err != nil {
		return x, err
	}
	h.Config.MetricsListen, h.Config.Sandbox = own.MetricsListen, own.Sandbox // each process has its own
	if d.opts.Admit != nil {
		if err := d.opts.Admit(&h.Config); err != nil {
			return x, err
		}
	}
	x.inhibitor = &power.Inhibitor{}
	x.inhibitor.Import(r)
	x.made, err = d.fleet.Import(&h.Config, r)
	return x, err
}

// check checks the configuration that was handed over.
func (h *handed) check(own *config.Config) error {
	if err := h.Config.Validate(); err != nil {
		return err
	}
	if h.Config.Control != own.Control {
		return fmt.Errorf("its control socket is %s, not %s", h.Config.Control, own.Control)
	}
	return nil
}

// begins begins to run what was inherited. This process, whose own configuration is own, owns it now.
func (d *daemon) begins(x *inheritance, own *config.Config) {
	d.control, d.metrics, d.inhibitor = x.control, x.metrics, x.inhibitor
	d.control.Own()
	d.journal.Restore(x.handed.Journal)
	d.fleet.Resting.Store(x.handed.Suspended)
	d.current.Continue(&x.handed.Config, x.handed.Left, x.made, own)
	if err := x.handed.Systemd.Import(); err != nil {
		d.opts.Log.Warn("systemd: cannot take over the reports to systemd, so its watchdog may restart the service",
			"err", err)
	}
	took := x.made.Settle(d.running)
	d.opts.Log.Info("taken over", "interfaces", len(x.handed.Config.Interfaces), "up_after", took)
	text := fmt.Sprintf("taken over, now version %s", d.opts.Version)
	d.journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: text})
}
