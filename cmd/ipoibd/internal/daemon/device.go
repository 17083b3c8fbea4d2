package daemon

import (
	"errors"
	"strings"

	"ipoibd/cmd/ipoibd/internal/backend"
	"ipoibd/cmd/ipoibd/internal/config"
	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/hca/faults"
)

// managed is an HCA that is opened again whenever it is lost.
type managed struct {
	*device.Device
	name     string
	slot     *backend.Slot
	portGUID hca.GUID
}

// newDevice opens the HCA for a moment, so that a mistake is reported at once.
func (d *daemon) newDevice(c config.Device, interfaces []config.Interface) (*managed, error) {
	slot, err := backend.New(c, backend.Options{AllowFaults: d.opts.AllowFaults, OpenHCA: d.opts.OpenHCA, Log: d.opts.Log})
	if err != nil {
		return nil, err
	}
	var users []string
	var ports []uint8
	for _, f := range interfaces {
		users, ports = append(users, f.Name), append(ports, f.Port)
	}
	guid, err := slot.Probe(ports...)
	if err != nil {
		return nil, errors.Join(err, slot.Close())
	}
	sharing := slot.Sharing()
	return &managed{name: c.Name, slot: slot, portGUID: guid, Device: device.New(device.Config{
		Name: c.Name, Open: slot.Open, List: slot, Reset: slot.Reset, Complete: slot.Complete,
		Underlay: slot.Info().Underlay, Coordinator: sharing.Dir, Means: sharing.Means, Holders: sharing.Holders,
		Users: strings.Join(users, ","), Grace: c.Grace, GiveUpAfter: c.GiveUpAfter, AllowForeign: c.AllowOtherDevice,
		Journal: d.journal, Log: d.opts.Log,
	})}, nil
}

// inject injects a fault of hca/faults into the device. Errors: backend.ErrNotOpen while
// there is no session, hca.ErrInvalid.
func (d *managed) inject(f faults.Fault) error {
	if d.View().Session == nil {
		return backend.ErrNotOpen
	}
	return d.slot.Inject(f)
}
