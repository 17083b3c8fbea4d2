package daemon

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Names implements control.Daemon, as do the methods below. These are called with names that Names
// has returned; a reload may have removed them since.
func (d *daemon) Names() (n control.Names) {
	devices, ifaces := d.fleet.Lists()
	for _, dev := range devices {
		n.Devices = append(n.Devices, dev.Name)
	}
	for _, f := range ifaces {
		n.Interfaces = append(n.Interfaces, f.Name())
	}
	return n
}

// Status assembles what devices and interfaces have published.
func (d *daemon) Status() report.Status {
	s := report.Status{
		SchemaVersion: report.SchemaVersion, Time: time.Now(), Version: d.opts.Version, PID: os.Getpid(),
		Started: d.started, Sandbox: d.opts.Sandbox,
	}
	u := process.ReadUsage()
	s.Goroutines, s.FDs, s.HeapBytes = u.Goroutines, u.FDs, u.HeapBytes
	s.Devices, s.Interfaces = d.fleet.Report(s.Time)
	return s
}

func (d *daemon) Journal() *journal.Journal { return d.journal }

func (d *daemon) Reset(ctx context.Context, q control.ResetRequest) error {
	if q.Scope == control.ScopeDevice {
		dev, err := d.want(q.Device)
		if err != nil {
			return err
		}
		return dev.Reset(ctx)
	}
	f, err := d.wantInterface(q.Interface)
	if err != nil {
		return err
	}
	rungs := map[string]qprecovery.Rung{
		control.ScopeQP: qprecovery.RungResetQP, control.ScopeCQ: qprecovery.RungRebuildCQ,
	}
	return f.Reset(ctx, rungs[q.Scope])
}

// Ping implements control.Daemon.
func (d *daemon) Ping(ctx context.Context, q control.PingRequest) (*control.PingReply, error) {
	f, err := d.wantInterface(q.Interface)
	if err != nil {
		return nil, err
	}
	e, err := f.Ping(ctx, q.Target, q.Size)
	switch {
	case errors.Is(err, iface.ErrNoAnswer):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &control.PingReply{GID: e.GID, QPN: e.QPN, RoundTrip: journal.Seconds(e.RoundTrip)}, nil
}

func (d *daemon) Capture(ctx context.Context, q capture.Request, out capture.Output) (capture.Summary, error) {
	f, err := d.wantInterface(q.Interface)
	if err != nil {
		return capture.Summary{}, err
	}
	return capture.Run(ctx, f.Iface, q, out)
}

func (d *daemon) Recover(ctx context.Context, q control.RecoverRequest) error {
	dev, err := d.want(q.Device)
	if err != nil {
		return err
	}
	return dev.Recover(ctx)
}

// wantInterface returns the interface of a request.
func (d *daemon) wantInterface(name string) (*fleet.Interface, error) {
	if f := d.fleet.Interface(name); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%w: interface %s has been removed", control.ErrNotFound, name)
}

// want returns the device of a request.
func (d *daemon) want(name string) (*fleet.Device, error) {
	if dev := d.fleet.Device(name); dev != nil {
		return dev, nil
	}
	return nil, fmt.Errorf("%w: device %s has been removed", control.ErrNotFound, name)
}

// Suspend lasts until Resume: the system's own resume does not end it.
func (d *daemon) Suspend(ctx context.Context) error {
	d.resting.Store(true)
	return d.sleep(ctx)
}

func (d *daemon) Resume(ctx context.Context) error {
	d.resting.Store(false)
	return d.wake(ctx)
}

// sleep suspends all devices, each after its interfaces (R26).
func (d *daemon) sleep(ctx context.Context) error {
	d.opts.Log.Info("suspending all devices")
	return d.fleet.Suspend(ctx)
}

// wake resumes all devices, unless the operator has suspended them.
func (d *daemon) wake(ctx context.Context) error {
	if d.resting.Load() {
		return nil
	}
	d.opts.Log.Info("resuming all devices")
	return d.fleet.Resume(ctx)
}

func (d *daemon) Fault(q control.FaultRequest) error {
	if !d.opts.AllowFaults {
		return fmt.Errorf("%w: start the daemon with --allow-faults", control.ErrNotAllowed)
	}
	if err := d.fault(q); err != nil {
		return err
	}
	d.opts.Log.Warn("fault injected",
		"device", q.Device, "kind", q.Kind, "after", q.After, "count", q.Count, "verb", q.Verb)
	d.journal.Add(journal.Entry{Scope: q.Device, Kind: journal.KindFault, Text: q.Kind})
	return nil
}

// misbehaviours maps kinds of fault to misbehaviours of the first interface of a device.
var misbehaviours = map[string]iface.Misbehaviour{
	control.FaultClientSlow: iface.Slow, control.FaultClientDead: iface.Dead, control.FaultClear: iface.Obliging,
}

func (d *daemon) fault(q control.FaultRequest) error {
	dev, err := d.want(q.Device)
	if err != nil {
		return err
	}
	how, ok := misbehaviours[q.Kind]
	_, ifaces := d.fleet.Lists()
	i := slices.IndexFunc(ifaces, func(f *fleet.Interface) bool { return f.DeviceName() == q.Device })
	if ok && i >= 0 {
		ifaces[i].Misbehave(how)
	}
	switch q.Kind {
	case control.FaultClientSlow, control.FaultClientDead:
	case control.FaultClear:
		dev.Slot.Faults.Clear()
	case control.FaultReindex:
		dev.Slot.Faults.Reindex()
	case control.FaultReplug:
		return dev.Slot.Faults.Plug(backend.PluggedIn)
	case control.FaultReplugOther:
		return dev.Slot.Faults.Plug(backend.PluggedOther)
	default:
		kind, err := faults.ParseKind(q.Kind)
		if err != nil {
			return err
		}
		return dev.Inject(faults.Fault{Kind: kind, After: q.After, Count: q.Count, Verb: q.Verb})
	}
	return nil
}
