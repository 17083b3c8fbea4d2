package daemon

import (
	"context"
	"errors"
	"fmt"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Names and the methods below are the daemon's side of its control socket.
func (d *daemon) Names() (n control.Names) {
	for _, dev := range d.devices {
		n.Devices = append(n.Devices, dev.name)
	}
	for _, f := range d.ifaces {
		n.Interfaces = append(n.Interfaces, f.Name())
	}
	return n
}

// Journal implements control.Daemon.
func (d *daemon) Journal() *journal.Journal { return d.journal }

// Reset implements control.Daemon.
func (d *daemon) Reset(ctx context.Context, q control.ResetRequest) error {
	switch q.Scope {
	case control.ScopeQP:
		return refusal(d.iface(q.Interface).Reset(ctx, qprecovery.RungResetQP))
	case control.ScopeCQ:
		return refusal(d.iface(q.Interface).Reset(ctx, qprecovery.RungRebuildCQ))
	}
	return refusal(d.device(q.Device).Reset(ctx))
}

// Recover implements control.Daemon.
func (d *daemon) Recover(ctx context.Context, q control.RecoverRequest) error {
	return refusal(d.device(q.Device).Recover(ctx))
}

// Suspend implements control.Daemon. It lasts beyond the system's own sleep.
func (d *daemon) Suspend(ctx context.Context) error {
	d.resting.Store(true)
	return d.sleep(ctx)
}

// Resume implements control.Daemon.
func (d *daemon) Resume(ctx context.Context) error {
	d.resting.Store(false)
	return d.wake(ctx)
}

// sleep suspends all devices at the same time, each after its interfaces (R26).
func (d *daemon) sleep(ctx context.Context) error {
	d.opts.Log.Info("suspending all devices")
	return d.each(func(dev *managed) error { return dev.Suspend(ctx) })
}

// wake resumes them, unless the operator wants them to rest.
func (d *daemon) wake(ctx context.Context) error {
	if d.resting.Load() {
		return nil
	}
	d.opts.Log.Info("resuming all devices")
	return d.each(func(dev *managed) error { return dev.Resume(ctx) })
}

func (d *daemon) each(do func(*managed) error) error {
	ended := make(chan error, len(d.devices))
	for _, dev := range d.devices {
		go func() { ended <- do(dev) }()
	}
	var errs []error
	for range d.devices {
		errs = append(errs, refusal(<-ended))
	}
	return errors.Join(errs...)
}

// Fault implements control.Daemon.
func (d *daemon) Fault(q control.FaultRequest) error {
	if !d.opts.AllowFaults {
		return fmt.Errorf("%w: start the daemon with --allow-faults", control.ErrNotAllowed)
	}
	if err := d.fault(d.device(q.Device), q); err != nil {
		return refusal(err)
	}
	d.opts.Log.Warn("fault injected", "device", q.Device, "kind", q.Kind, "after", q.After, "count", q.Count, "verb", q.Verb)
	d.journal.Add(journal.Entry{Scope: q.Device, Kind: journal.KindFault, Text: q.Kind})
	return nil
}

func (d *daemon) fault(dev *managed, q control.FaultRequest) error {
	switch q.Kind {
	case control.FaultReplug:
		return dev.slot.Plug(backend.PluggedIn)
	case control.FaultReplugOther:
		return dev.slot.Plug(backend.PluggedOther)
	case control.FaultReindex:
		dev.slot.Reindex()
	case control.FaultClientSlow:
		d.misbehave(q.Device, iface.Slow)
	case control.FaultClientDead:
		d.misbehave(q.Device, iface.Dead)
	case control.FaultClear:
		d.misbehave(q.Device, iface.Obliging)
		dev.slot.ClearFaults()
	default:
		kind, err := faults.ParseKind(q.Kind)
		if err != nil {
			return err
		}
		return dev.inject(faults.Fault{Kind: kind, After: q.After, Count: q.Count, Verb: q.Verb})
	}
	return nil
}

// misbehave makes the first interface of a device a bad client.
func (d *daemon) misbehave(device string, how iface.Misbehaviour) {
	for _, f := range d.ifaces {
		if f.DeviceName() == device {
			f.Misbehave(how)
			return
		}
	}
}

// device finds a device of [daemon.Names].
func (d *daemon) device(name string) *managed {
	for _, dev := range d.devices {
		if dev.name == name {
			return dev
		}
	}
	panic(fmt.Sprintf("no device %q", name))
}

// iface finds an interface of [daemon.Names].
func (d *daemon) iface(name string) *iface.Iface {
	for _, f := range d.ifaces {
		if f.Name() == name {
			return f
		}
	}
	panic(fmt.Sprintf("no interface %q", name))
}

// refusals are the errors of the rooms that an operator is to hear of by a
// status of its own.
var refusals = []struct{ of, as error }{
	{backend.ErrNotOpen, control.ErrConflict},
	{backend.ErrNotPulledOut, control.ErrConflict},
	{iface.ErrNothing, control.ErrConflict},
	{iface.ErrUnderWay, control.ErrConflict},
	{device.ErrNotOpen, control.ErrConflict},
	{device.ErrSuspended, control.ErrConflict},
	{device.ErrResumed, control.ErrConflict},
	{device.ErrOpen, control.ErrConflict},
	{device.ErrUnderWay, control.ErrConflict},
	{device.ErrGivenUp, control.ErrConflict},
	{device.ErrNotSuspended, control.ErrConflict},
	{device.ErrEnded, control.ErrConflict},
}

func refusal(err error) error {
	for _, r := range refusals {
		if errors.Is(err, r.of) {
			return fmt.Errorf("%w: %w", r.as, err)
		}
	}
	return err
}
