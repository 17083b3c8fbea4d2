package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Devices implements [control.Fleet].
func (f *Fleet) Devices() (all []control.Device) {
	devices, _ := f.lists()
	for _, d := range devices {
		all = append(all, d)
	}
	return all
}

// Interfaces implements [control.Fleet].
func (f *Fleet) Interfaces() (all []control.Interface) {
	_, ifaces := f.lists()
	for _, m := range ifaces {
		all = append(all, m)
	}
	return all
}

// Name implements [control.Device].
func (d *Device) Name() string { return d.name }

// Name implements [control.Interface].
func (m *Interface) Name() string { return m.iface.Name() }

// Reset implements [control.Interface].
func (m *Interface) Reset(ctx context.Context, rung qprecovery.Rung) error {
	return m.iface.Reset(ctx, rung)
}

// Ping implements [control.Interface].
func (m *Interface) Ping(ctx context.Context, target string, size int) (*report.Echo, error) {
	return m.iface.Ping(ctx, target, size)
}

// Capture implements [control.Interface].
func (m *Interface) Capture(ctx context.Context, q capture.Request, out capture.Output) (capture.Summary, error) {
	return capture.Run(ctx, m.iface, q, out)
}

// Suspend suspends all devices, each after its interfaces (R26), and those that are added later. Only Resume ends that:
// Wake does not.
func (f *Fleet) Suspend(ctx context.Context) error {
	f.Resting.Store(true)
	return f.Sleep(ctx)
}

// Resume undoes Suspend.
func (f *Fleet) Resume(ctx context.Context) error {
	f.Resting.Store(false)
	return f.Wake(ctx)
}

// Sleep suspends all devices until Wake, because the system sleeps.
func (f *Fleet) Sleep(ctx context.Context) error {
	f.opts.Log.Info("suspending all devices")
	return f.each(ctx, true, (*device.Device).Suspend)
}

// Wake resumes all devices, unless the operator has suspended them.
func (f *Fleet) Wake(ctx context.Context) error {
	if f.Resting.Load() {
		return nil
	}
	f.opts.Log.Info("resuming all devices")
	return f.each(ctx, false, (*device.Device).Resume)
}

// each calls do for all devices at the same time. A device that a reload is removing has ended.
func (f *Fleet) each(ctx context.Context, asleep bool, do func(*device.Device, context.Context) error) (all error) {
	f.mu.Lock()
	f.asleep = asleep
	devices := f.devices
	f.mu.Unlock()
	ended := make(chan error, len(devices))
	for _, d := range devices {
		go func() { ended <- do(d.Device, ctx) }()
	}
	for range devices {
		if err := <-ended; !errors.Is(err, device.ErrEnded) {
			all = errors.Join(all, err)
		}
	}
	return all
}

// misbehaviours maps kinds of fault to misbehaviours of the first interface of a device.
var misbehaviours = map[string]iface.Misbehaviour{
	control.FaultClientSlow: iface.Slow, control.FaultClientDead: iface.Dead, control.FaultClear: iface.Obliging,
}

// Fault implements [control.Fleet].
func (f *Fleet) Fault(q control.FaultRequest) error {
	if !f.opts.AllowFaults {
		return fmt.Errorf("%w: start the daemon with --allow-faults", control.ErrNotAllowed)
	}
	d := f.Device(q.Device)
	if d == nil {
		return fmt.Errorf("%w: device %s has been removed", control.ErrNotFound, q.Device)
	}
	if how, ok := misbehaviours[q.Kind]; ok {
		_, ifaces := f.lists()
		if i := slices.IndexFunc(ifaces, func(m *Interface) bool { return m.device == d }); i >= 0 {
			ifaces[i].iface.Misbehave(how)
		}
	}
	if err := d.fault(q); err != nil {
		return err
	}
	f.opts.Log.Warn("fault injected",
		"device", q.Device, "kind", q.Kind, "after", q.After, "count", q.Count, "verb", q.Verb)
	f.opts.Journal.Add(journal.Entry{Scope: q.Device, Kind: journal.KindFault, Text: q.Kind})
	return nil
}

// fault injects a fault into a device, unless it is one of an interface.
func (d *Device) fault(q control.FaultRequest) error {
	switch q.Kind {
	case control.FaultClientSlow, control.FaultClientDead:
	case control.FaultClear:
		d.Slot.Faults.Clear()
	case control.FaultReindex:
		d.Slot.Faults.Reindex()
	case control.FaultReplug:
		return d.Slot.Faults.Plug(backend.PluggedIn)
	case control.FaultReplugOther:
		return d.Slot.Faults.Plug(backend.PluggedOther)
	default:
		kind, err := faults.ParseKind(q.Kind)
		if err != nil {
			return err
		}
		return d.Inject(faults.Fault{Kind: kind, After: q.After, Count: q.Count, Verb: q.Verb})
	}
	return nil
}

// Inject injects a fault of hca/faults, if faults are allowed. Errors: backend.ErrNotOpen, hca.ErrInvalid.
func (d *Device) Inject(fault faults.Fault) error {
	if d.View().Session == nil {
		return backend.ErrNotOpen
	}
	return d.Slot.Faults.Inject(fault)
}
