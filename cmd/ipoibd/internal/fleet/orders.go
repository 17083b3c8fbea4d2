package fleet

import (
	"context"
	"errors"
	"slices"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/iface"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca/faults"
	"ipoibd/qprecovery"
)

// Devices returns the devices that no change removes, in the order of the configuration.
func (f *Fleet) Devices() []*Device {
	devices, _ := f.lists()
	return slices.DeleteFunc(slices.Clone(devices), func(d *Device) bool { return d.removed.Load() })
}

// Interfaces returns the interfaces that no change removes, in the order of the configuration.
func (f *Fleet) Interfaces() []*Interface {
	_, ifaces := f.lists()
	return slices.DeleteFunc(slices.Clone(ifaces), func(m *Interface) bool { return m.removed.Load() })
}

// Name returns the name of the device.
func (d *Device) Name() string { return d.name }

// Name returns the name of the interface.
func (m *Interface) Name() string { return m.iface.Name() }

// Reset enters a rung of recovery: see [iface.Iface.Reset].
func (m *Interface) Reset(ctx context.Context, rung qprecovery.Rung) error {
	return m.iface.Reset(ctx, rung)
}

// Ping sends an echo request to a peer: see [iface.Iface.Ping].
func (m *Interface) Ping(ctx context.Context, target string, size int) (*report.Echo, error) {
	return m.iface.Ping(ctx, target, size)
}

// Capture writes a capture file: see [capture.Run].
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
var misbehaviours = map[faults.Kind]iface.Misbehaviour{
	faults.ClientSlow: iface.Slow, faults.ClientDead: iface.Dead, faults.Clear: iface.Obliging,
}

// Fault injects a fault into a device, or into its first interface. Errors: those of [Device.Inject].
func (f *Fleet) Fault(d *Device, fault faults.Fault) error {
	if how, ok := misbehaviours[fault.Kind]; ok {
		_, ifaces := f.lists()
		if i := slices.IndexFunc(ifaces, func(m *Interface) bool { return m.device == d }); i >= 0 {
			ifaces[i].iface.Misbehave(how)
		}
	}
	if err := d.Inject(fault); err != nil {
		return err
	}
	kind := fault.Kind.String()
	f.opts.Log.Warn("fault injected",
		"device", d.name, "kind", kind, "after", fault.After, "count", fault.Count, "verb", fault.Verb)
	f.opts.Journal.Add(journal.Entry{Scope: d.name, Kind: journal.KindFault, Text: kind})
	return nil
}

// Inject injects a fault into the device, unless it is one of an interface. Errors: backend.ErrNotOpen,
// backend.ErrNotPulledOut, hca.ErrInvalid.
func (d *Device) Inject(fault faults.Fault) error {
	switch fault.Kind {
	case faults.ClientSlow, faults.ClientDead:
	case faults.Clear:
		d.Slot.Faults.Clear()
	case faults.Reindex:
		d.Slot.Faults.Reindex()
	case faults.Replug:
		return d.Slot.Faults.Plug(backend.PluggedIn)
	case faults.ReplugOther:
		return d.Slot.Faults.Plug(backend.PluggedOther)
	default:
		if d.View().Session == nil {
			return backend.ErrNotOpen
		}
		return d.Slot.Faults.Inject(fault)
	}
	return nil
}
