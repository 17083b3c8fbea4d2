package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
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
	devices, ifaces := d.lists()
	for _, dev := range devices {
		n.Devices = append(n.Devices, dev.name)
	}
	for _, f := range ifaces {
		n.Interfaces = append(n.Interfaces, f.Name())
	}
	return n
}

// Status assembles what devices and interfaces have published.
func (d *daemon) Status() report.Status {
	s := report.Status{SchemaVersion: report.SchemaVersion, Time: time.Now(), Version: d.opts.Version, PID: os.Getpid(), Started: d.started, Sandbox: d.opts.Sandbox}
	u := process.ReadUsage()
	s.Goroutines, s.FDs, s.HeapBytes, s.Devices, s.Interfaces = u.Goroutines, u.FDs, u.HeapBytes, []report.Device{}, []report.Interface{}
	devices, ifaces := d.lists()
	for _, dev := range devices {
		s.Devices = append(s.Devices, d.reportOf(dev, s.Time))
	}
	for _, f := range ifaces {
		s.Interfaces = append(s.Interfaces, d.statusOf(f))
	}
	return s
}

// reportOf returns the status of a device at the time now.
func (d *daemon) reportOf(dev *managed, now time.Time) report.Device {
	r, info := dev.Report(now), dev.slot.Info()
	r.HCA, r.Kind, r.Underlay, r.Reset = info.HCA, info.Kind, info.Underlay, string(info.Reset)
	r.Replicates, r.Peers, r.KnownPeersOnly = info.Peers != nil, append([]netip.Addr{}, info.Peers...), info.KnownPeersOnly
	r.Counters.Add("", info.Counters)
	dev.before.addTo(&r)
	if r.State == report.DeviceOpen {
		r.Notices, r.Notice = append(r.Notices, info.Notices...), info.Notices.Text()
	}
	return r
}

// statusOf returns the status of an interface, with what the interface itself does not know: that it
// was added at run time, and that it could not be rebuilt.
func (d *daemon) statusOf(m *member) report.Interface {
	s := m.Status()
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Runtime = m.runtime
	if m.failure != nil && s.State != report.InterfaceFailed {
		s.State, s.Reason, s.Detail = report.InterfaceFailed, iface.ReasonLost, m.failure.Error()
	}
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
	rung := map[string]qprecovery.Rung{control.ScopeQP: qprecovery.RungResetQP, control.ScopeCQ: qprecovery.RungRebuildCQ}[q.Scope]
	return f.Reset(ctx, rung)
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
func (d *daemon) wantInterface(name string) (*member, error) {
	if f := d.iface(name); f != nil {
		return f, nil
	}
	return nil, fmt.Errorf("%w: interface %s has been removed", control.ErrNotFound, name)
}

// want returns the device of a request.
func (d *daemon) want(name string) (*managed, error) {
	if dev := d.device(name); dev != nil {
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
	return d.each(ctx, true, (*device.Device).Suspend)
}

// wake resumes all devices, unless the operator has suspended them.
func (d *daemon) wake(ctx context.Context) error {
	if d.resting.Load() {
		return nil
	}
	d.opts.Log.Info("resuming all devices")
	return d.each(ctx, false, (*device.Device).Resume)
}

// each calls do for all devices at the same time. A device that a reload is removing has ended.
func (d *daemon) each(ctx context.Context, asleep bool, do func(*device.Device, context.Context) error) (all error) {
	d.mu.Lock()
	d.asleep = asleep
	devices := d.devices
	d.mu.Unlock()
	ended := make(chan error, len(devices))
	for _, dev := range devices {
		go func() { ended <- do(dev.Device, ctx) }()
	}
	for range devices {
		if err := <-ended; !errors.Is(err, device.ErrEnded) {
			all = errors.Join(all, err)
		}
	}
	return all
}

func (d *daemon) Fault(q control.FaultRequest) error {
	if !d.opts.AllowFaults {
		return fmt.Errorf("%w: start the daemon with --allow-faults", control.ErrNotAllowed)
	}
	if err := d.fault(q); err != nil {
		return err
	}
	d.opts.Log.Warn("fault injected", "device", q.Device, "kind", q.Kind, "after", q.After, "count", q.Count, "verb", q.Verb)
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
	_, ifaces := d.lists()
	if i := slices.IndexFunc(ifaces, func(f *member) bool { return f.DeviceName() == q.Device }); ok && i >= 0 {
		ifaces[i].Misbehave(how)
	}
	switch q.Kind {
	case control.FaultClientSlow, control.FaultClientDead:
	case control.FaultClear:
		dev.slot.ClearFaults()
	case control.FaultReindex:
		dev.slot.Reindex()
	case control.FaultReplug:
		return dev.slot.Plug(backend.PluggedIn)
	case control.FaultReplugOther:
		return dev.slot.Plug(backend.PluggedOther)
	default:
		kind, err := faults.ParseKind(q.Kind)
		if err != nil {
			return err
		}
		return dev.inject(faults.Fault{Kind: kind, After: q.After, Count: q.Count, Verb: q.Verb})
	}
	return nil
}

// inject injects a fault of hca/faults. Errors: backend.ErrNotOpen, hca.ErrInvalid.
func (d *managed) inject(f faults.Fault) error {
	if d.View().Session == nil {
		return backend.ErrNotOpen
	}
	return d.slot.Inject(f)
}
