// Package daemon constructs the fleet of devices and interfaces, the control socket and the metrics from a
// configuration, which package current changes, and stops everything in order within 8 s: interfaces before devices
// (children before their ports), the servers last.
//
// If a start fails, interfaces that it created are removed, and those that existed before are
// kept. The same holds at the stop if an HCA could never be opened because another process used
// it, or its UDP port, except for interfaces that the host has configured. A running daemon
// continues as long as one interface works, or nothing but those added at run time have failed. The
// status shows an interface that was deleted or moved out of reach as failed, with the reason.
//
// A hand-over to another process (package handover) excludes changes. The giver then ends like any stop, except that
// each part was told that another process continues it. The taker runs the giver's configuration first, and then
// applies its own as a reload does.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/bpf"
	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/current"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/metrics"
	"ipoibd/cmd/ipoibd/internal/power"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/systemd"
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
	TakeOver    bool // continue the interfaces of a daemon that answers on the control socket
	Sandbox     report.Sandbox
	Programs    *bpf.Programs // for the interfaces with eBPF; nil: there are none
	FastPath    *bpf.FastPath // for the devices that use it
	// Admit returns an error if the daemon, which has dropped privileges, cannot carry out a
	// configuration; nil: it can carry out all.
	Admit func(*config.Config) error
	// OpenRDMA opens an RDMA device of the kernel by its name. It returns hca.ErrNoDevice if
	// there is none, or no way to open it.
	OpenRDMA func(name string) (hca.Device, error)
	// Load returns the present configuration for a reload; nil: it does not come from a file.
	Load func() (*config.Config, error)
	// Hangup has a value for each SIGHUP; nil: there are none.
	Hangup <-chan os.Signal
	Log    *slog.Logger
}

// daemon is a running daemon.
type daemon struct {
	opts      Options
	started   time.Time
	fleet     *fleet.Fleet
	current   *current.Current
	control   *control.Server
	metrics   *metrics.Server // nil: not over TCP
	journal   *journal.Journal
	inhibitor power.Inhibitor // of the system's sleep
	host      handover.Host   // guarded by the lock of current
	given     atomic.Bool     // another process continues everything

	running context.Context // ends when the daemon is to stop
	end     context.CancelCauseFunc
}

// newDaemon returns a daemon without devices and interfaces.
func newDaemon(ctx context.Context, opts Options) *daemon {
	d := &daemon{opts: opts, started: time.Now(), journal: journal.New()}
	d.host = handover.Host{Journal: d.journal, Log: opts.Log}
	d.running, d.end = context.WithCancelCause(ctx)
	d.fleet = fleet.New(d.running, fleet.Options{
		AllowFaults: opts.AllowFaults, Remove: opts.Remove, OpenRDMA: opts.OpenRDMA, Programs: opts.Programs, FastPath: opts.FastPath,
		Journal: d.journal, Log: opts.Log, Lost: d.end,
	})
	d.current = current.New(d.running, current.Options{
		Fleet: d.fleet, Load: opts.Load, Admit: opts.Admit, Forget: opts.Remove, Journal: d.journal, Log: opts.Log,
	})
	return d
}

// status assembles what devices and interfaces have published.
func (d *daemon) status() report.Status {
	s := report.Status{
		SchemaVersion: report.SchemaVersion, Time: time.Now(), Version: d.opts.Version, PID: os.Getpid(),
		Started: d.started, Sandbox: d.opts.Sandbox,
	}
	u := process.ReadUsage()
	s.Goroutines, s.FDs, s.HeapBytes = u.Goroutines, u.FDs, u.HeapBytes
	s.Devices, s.Interfaces = d.fleet.Report(s.Time)
	return s
}

// Run runs until ctx ends, the system shuts down, or the last interface has failed. Its error
// joins the failures to start, failures while running, and failures to stop in time.
func Run(ctx context.Context, cfg *config.Config, opts Options) (err error) {
	d := newDaemon(ctx, opts)
	defer d.end(nil)
	if opts.TakeOver {
		if taken, err := d.takeOver(ctx, cfg); err != nil {
			return err
		} else if taken {
			return d.serve(ctx, cfg.Control)
		}
	}
	if d.control, err = control.Listen(cfg.Control, d.controlled()); err != nil {
		return err
	}
	if cfg.MetricsListen != "" {
		if d.metrics, err = metrics.Listen(cfg.MetricsListen, d.status); err != nil {
			return errors.Join(err, d.closeServers())
		}
	}
	err = d.current.Start(cfg, func() {
		d.lockMemory(cfg) // not before, so that a mistake is reported at once and alone
		if err := d.journal.Load(historyOf(cfg.Control)); err != nil {
			d.opts.Log.Warn("cannot read the events of the previous daemon", "err", err)
		}
	})
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) { // it came while a device waited for other daemons
		return d.closeServers()
	}
	if err != nil {
		return errors.Join(err, d.closeServers())
	}
	d.current.TakeBack()
	return d.serve(ctx, cfg.Control)
}

func (d *daemon) lockMemory(cfg *config.Config) {
	if !d.opts.LockMemory {
		return
	}
	if err := process.LockMemory(); err != nil {
		d.opts.Log.Log(d.running, backend.UnlockedLevel(cfg.Devices), "cannot lock memory", "err", err)
	}
}

// serve serves requests until ctx ends, the system shuts down, the control socket breaks, or
// every interface has failed, then stops everything in order. The system may sleep or shut down
// once the fabric is no longer used (R26).
func (d *daemon) serve(ctx context.Context, control string) error {
	powerCtx, stopPower := context.WithCancel(context.Background())
	var others sync.WaitGroup
	stopped := make(chan struct{})
	others.Go(func() {
		stop := func(context.Context) error { d.end(nil); <-stopped; return nil }
		power.Watch(powerCtx, power.Hooks{Suspend: d.fleet.Sleep, Resume: d.fleet.Wake, Stop: stop}, &d.inhibitor, d.opts.Log)
	})
	keepEvents := d.journal.Keeper(historyOf(control), d.opts.Log)
	others.Go(func() { keepEvents(powerCtx) })
	others.Go(func() { d.current.Run(d.opts.Hangup) })
	defer others.Wait()
	defer stopPower()
	defer close(stopped)

	go func() { d.end(fmt.Errorf("control socket: %w", d.control.Serve())) }()
	if d.metrics != nil {
		go d.metrics.Run(d.opts.Log)
	}
	others.Go(func() {
		systemd.Run(d.running, systemd.Service{
			Started: d.control.Answers, Alive: d.fleet.Answers, Status: d.fleet.Summary, Left: d.given.Load, Log: d.opts.Log,
		})
	})
	d.opts.Log.Info("running", "version", d.opts.Version, "interfaces", len(d.fleet.Interfaces()))
	<-d.running.Done()
	err := context.Cause(d.running)
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		err = nil // as ordered, by the system's shutdown, or after a hand-over
	}
	if d.given.Load() { // first, so that clients ask the other process
		err = errors.Join(err, d.closeServers())
	}
	d.opts.Log.Info("stopping")

	done := make(chan error, 1)
	go func() { // interfaces and then devices, after a change under way
		d.current.Hold()
		done <- d.fleet.Stop(d.given.Load())
	}()
	select {
	case e := <-done:
		err = errors.Join(err, e)
	case <-time.After(stopLimit):
		err = errors.Join(err, fmt.Errorf("did not stop within %s", stopLimit))
	}
	if d.given.Load() {
		return err
	}
	return errors.Join(err, d.closeServers())
}

// historyOf returns the path of the file with the latest events, beside the control socket: events
// outlive the daemon, but not a restart of the machine.
func historyOf(control string) string { return strings.TrimSuffix(control, ".sock") + ".events.jsonl" }

func (d *daemon) closeServers() (err error) {
	if d.metrics != nil {
		err = d.metrics.Close()
	}
	if d.control != nil {
		err = errors.Join(err, d.control.Close())
	}
	return err
}
