package daemon

import (
	"context"

	"ipoibd/cmd/ipoibd/internal/control"
	"ipoibd/cmd/ipoibd/internal/journal"
)

// Names, Status and the methods below are the daemon's side of its control
// socket.
func (d *daemon) Names() (n control.Names) {
	for _, dev := range d.devices {
		n.Devices = append(n.Devices, dev.cfg.Name)
	}
	for _, f := range d.ifaces {
		n.Interfaces = append(n.Interfaces, f.Name())
	}
	return n
}

func (d *daemon) Status() control.Status { return d.status() }

func (d *daemon) Journal() *journal.Journal { return d.journal }

func (d *daemon) Fault(control.FaultRequest) error { return control.ErrUnavailable }

func (d *daemon) Reset(context.Context, control.ResetRequest) error { return control.ErrUnavailable }

func (d *daemon) Recover(context.Context, control.RecoverRequest) error {
	return control.ErrUnavailable
}

func (d *daemon) Suspend(context.Context) error { return control.ErrUnavailable }

func (d *daemon) Resume(context.Context) error { return control.ErrUnavailable }
