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
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/process"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Names implements control.Daemon, as do the methods below. These are only called with names
// that Names returns.
func (d *daemon) Names() (n control.Names) {
	for _, dev := range d.devices {
		n.Devices = append(n.Devices, dev.name)
	}
	for _, f := range d.ifaces {
		n.Interfaces = append(n.Interfaces, f.Name())
	}
	return n
}

// Status assembles what devices and interfaces have published.
func (d *daemon) Status() report.Status {
	s := report.Status{SchemaVersion: report.SchemaVersion, Time: time.Now(), Version: d.opts.Version, PID: os.Getpid(), Started: d.started}
	u := process.ReadUsage()
	s.Goroutines, s.FDs, s.HeapBytes, s.Devices, s.Interfaces = u.Goroutines, u.FDs, u.HeapBytes, []report.Device{}, []report.Interface{}
	for _, dev := range d.devices {
		r, info := dev.Report(s.Time), dev.slot.Info()
		r.HCA, r.Kind, r.Underlay, r.Reset = info.HCA, info.Kind, info.Underlay, string(info.Reset)
		r.Replicates, r.Peers, r.KnownPeersOnly = info.Peers != nil, append([]netip.Addr{}, info.Peers...), info.KnownPeersOnly
		r.Counters.Add("", info.Counters)
		if r.State == report.DeviceOpen {
			r.Notice = info.Notice
		}
		s.Devices = append(s.Devices, r)
	}
	for _, f := range d.ifaces {
		s.Interfaces = append(s.Interfaces, f.Status())
	}
	return s
}

func (d *daemon) Journal() *journal.Journal { return d.journal }

func (d *daemon) Reset(ctx context.Context, q control.ResetRequest) error {
	if q.Scope == control.ScopeDevice {
		return d.device(q.Device).Reset(ctx)
	}
	rung := map[string]qprecovery.Rung{control.ScopeQP: qprecovery.RungResetQP, control.ScopeCQ: qprecovery.RungRebuildCQ}[q.Scope]
	i := slices.IndexFunc(d.ifaces, func(f *iface.Iface) bool { return f.Name() == q.Interface })
	return d.ifaces[i].Reset(ctx, rung)
}

func (d *daemon) Recover(ctx context.Context, q control.RecoverRequest) error {
	return d.device(q.Device).Recover(ctx)
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
	return d.each(ctx, (*device.Device).Suspend)
}

// wake resumes all devices, unless the operator has suspended them.
func (d *daemon) wake(ctx context.Context) error {
	if d.resting.Load() {
		return nil
	}
	d.opts.Log.Info("resuming all devices")
	return d.each(ctx, (*device.Device).Resume)
}

// each calls do for all devices at the same time.
func (d *daemon) each(ctx context.Context, do func(*device.Device, context.Context) error) (all error) {
	ended := make(chan error, len(d.devices))
	for _, dev := range d.devices {
		go func() { ended <- do(dev.Device, ctx) }()
	}
	for range d.devices {
		all = errors.Join(all, <-ended)
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
	dev := d.device(q.Device)
	how, ok := misbehaviours[q.Kind]
	if i := slices.IndexFunc(d.ifaces, func(f *iface.Iface) bool { return f.DeviceName() == q.Device }); ok && i >= 0 {
		d.ifaces[i].Misbehave(how)
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

func (d *daemon) device(name string) *managed {
	return d.devices[slices.IndexFunc(d.devices, func(dev *managed) bool { return dev.name == name })]
}
