package daemon

import (
	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/fleet"
	"ipoibd/hca/faults"
)

// controlled returns what the control socket shows and controls.
func (d *daemon) controlled() control.Daemon {
	return control.Daemon{
		Status: d.status, Journal: d.journal, Fleet: controlledFleet{d.fleet}, Config: d.current,
		HandOver: d.handOver, AllowFaults: d.opts.AllowFaults,
	}
}

// controlledFleet is a [control.Fleet].
type controlledFleet struct{ *fleet.Fleet }

func (f controlledFleet) Devices() (all []control.Device) {
	for _, d := range f.Fleet.Devices() {
		all = append(all, controlledDevice{d, f.Fleet})
	}
	return all
}

func (f controlledFleet) Interfaces() (all []control.Interface) {
	for _, i := range f.Fleet.Interfaces() {
		all = append(all, i)
	}
	return all
}

// controlledDevice is a [control.Device].
type controlledDevice struct {
	*fleet.Device
	fleet *fleet.Fleet
}

// Inject hides that of the device, which knows no interface.
func (d controlledDevice) Inject(f faults.Fault) error { return d.fleet.Fault(d.Device, f) }
