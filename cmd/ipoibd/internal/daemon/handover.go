package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/metrics"
	"ipoibd/cmd/ipoibd/internal/systemd"
	"ipoibd/link/kernel/capsule"
)

// handed is the part "daemon" of a capsule. The others are "control" and, if there is one, "metrics", the listeners;
// "inhibitors" of package power; and those of package fleet.
type handed struct {
	Config    config.Config              `json:"config"`    // without the interfaces that have failed
	Suspended bool                       `json:"suspended"` // by the operator
	Journal   []journal.Entry            `json:"journal"`
	Systemd   systemd.State              `json:"systemd"`
	Left      map[string]json.RawMessage `json:"left"` // saved interfaces that do not run: see current.Current.TakeBack
}

// handOver hands everything over to another process, which ends this one: see [control.Daemon].
func (d *daemon) handOver(accept func() (*net.UnixConn, error)) error {
	release, err := d.current.TryHold()
	if err != nil {
		return err
	}
	defer release()
	if err := d.host.Ready(time.Now()); err != nil {
		return fmt.Errorf("%w: %w", control.ErrUnavailable, err)
	}
	given, err := d.host.HandOver(d.running, &live{daemon: d}, accept)
	if given {
		d.end(nil) // before the lock is free
	}
	return err
}

// live is a daemon that may be handed over: a [handover.Live].
type live struct {
	*daemon
	parked *fleet.Parked
}

func (l *live) Settle(ctx context.Context) error { return l.fleet.Settle(ctx) }

// Park pauses the servers first, so that no client sees what has stopped.
func (l *live) Park(ctx context.Context) (limit time.Time, err error) {
	var both sync.WaitGroup
	both.Go(l.control.Pause)
	if l.metrics != nil {
		both.Go(l.metrics.Pause)
	}
	both.Wait()
	l.parked, limit, err = l.fleet.Park(ctx)
	return limit, err
}

func (l *live) Export(w *capsule.Writer) error {
	h := handed{Suspended: l.fleet.Resting.Load(), Journal: l.journal.Since(0), Systemd: systemd.Export()}
	h.Config, h.Left = l.current.Works()
	w.Put("daemon", h)
	l.control.Export(w)
	if l.metrics != nil {
		l.metrics.Export(w)
	}
	l.inhibitor.Export(w)
	return l.parked.Export(w)
}

func (l *live) Resume() {
	l.parked.Resume()
	l.control.Resume()
	if l.metrics != nil {
		l.metrics.Resume()
	}
}

func (l *live) Leave() {
	l.given.Store(true)
	l.control.Leave()
	l.parked.Leave()
}

// takeOver takes over from the daemon that answers on the control socket, and runs what that daemon ran,
// with its configuration. It returns false if no daemon answers. After an error nothing has changed.
func (d *daemon) takeOver(ctx context.Context, own *config.Config) (taken bool, err error) {
	d.lockMemory(own) // before the other daemon stops
	var h handed
	var made fleet.Made
	connect := func(ctx context.Context) (*net.UnixConn, error) { return control.AskHandOver(ctx, own.Control) }
	build := func(r *capsule.Reader) (err error) {
		h, made, err = d.build(r, own)
		return err
	}
	discard := func() error {
		d.inhibitor.Release()
		err := errors.Join(made.Close(), d.closeServers())
		d.control, d.metrics = nil, nil
		return err
	}
	err = handover.TakeOver(ctx, connect, build, discard)
	switch {
	case errors.Is(err, control.ErrNotRunning):
		d.opts.Log.Info("no daemon answers on the control socket; starting without a take-over")
		return false, nil
	case err != nil:
		return false, err
	}
	d.control.Own()
	d.journal.Restore(h.Journal)
	d.fleet.Resting.Store(h.Suspended)
	d.current.Continue(&h.Config, h.Left, made, own)
	if err := h.Systemd.Import(); err != nil {
		d.opts.Log.Warn("systemd: cannot take over the reports to systemd, so its watchdog may restart the service",
			"err", err)
	}
	took := made.AwaitUp(d.running)
	d.opts.Log.Info("taken over", "interfaces", len(h.Config.Interfaces), "up_after", took)
	text := fmt.Sprintf("taken over, now version %s", d.opts.Version)
	d.journal.Add(journal.Entry{Scope: "daemon", Kind: journal.KindNote, Text: text})
	return true, nil
}

// build makes everything that the other daemon runs. Nothing of it runs yet. After an error, part of it is made.
func (d *daemon) build(r *capsule.Reader, own *config.Config) (h handed, made fleet.Made, err error) {
	if err = r.Value("daemon", &h); err == nil {
		err = h.check(own)
	}
	if err != nil {
		return h, made, fmt.Errorf("the state of the running daemon: %w", err)
	}
	if d.control, err = control.Import(own.Control, r, d.controlled()); err != nil {
		return h, made, err
	}
	switch own.MetricsListen {
	case "":
	case h.Config.MetricsListen:
		d.metrics, err = metrics.Import(r, d.status)
	default:
		d.metrics, err = metrics.Listen(own.MetricsListen, d.status)
	}
	if err != nil {
		return h, made, err
	}
	h.Config.MetricsListen, h.Config.Sandbox = own.MetricsListen, own.Sandbox // each process has its own
	if d.opts.Admit != nil {
		if err := d.opts.Admit(&h.Config); err != nil {
			return h, made, err
		}
	}
	d.inhibitor.Import(r)
	made, err = d.fleet.Import(&h.Config, r)
	return h, made, err
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
