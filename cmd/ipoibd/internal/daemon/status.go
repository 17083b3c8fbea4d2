package daemon

import (
	"net/netip"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Status implements control.Daemon. It reads what devices and interfaces have published.
func (d *daemon) Status() report.Status {
	s := report.NewStatus(d.opts.Version, d.started)
	for _, dev := range d.devices {
		s.Devices = append(s.Devices, dev.report(s.Time))
	}
	for _, f := range d.ifaces {
		s.Interfaces = append(s.Interfaces, f.Status())
	}
	return s
}

func (d *managed) report(now time.Time) report.Device {
	view, status, info := d.View(), d.Status(), d.slot.Info()
	r := report.Device{
		Name: d.name, HCA: info.HCA, Kind: info.Kind, Underlay: info.Underlay, Reset: string(info.Reset),
		State: status.State.String(), Reason: status.Reason.String(), Since: status.Since,
		Opens: d.Opens(), Attr: status.Attr, Ports: []report.Port{}, Counters: report.Counters{},
		Replicates: info.Peers != nil, Peers: append([]netip.Addr{}, info.Peers...), KnownPeersOnly: info.KnownPeersOnly,
		Recovery:    report.NewRecovery(status.State, status.Rung, status.Reason, status.Counts, status.History, now),
		Coordinator: coordinator(status),
	}
	r.Recovery.NextTry, r.Recovery.GivesUp = status.NextTry, status.GivesUp
	if status.State == qprecovery.DeviceHealthy {
		r.State, r.Reason = report.DeviceOpen, qprecovery.ReasonNone.String()
	}
	if status.LastError != nil {
		r.LastError = status.LastError.Error()
	}
	if view.Session != nil {
		r.Notice = info.Notice
		r.Counters.Add("", view.Session.Counters())
	}
	r.Counters.Add("", info.Counters)
	for i, p := range view.Ports {
		p.GIDs, p.PKeys = append([]hca.GIDEntry{}, p.GIDs...), append([]hca.PKey{}, p.PKeys...)
		r.Ports = append(r.Ports, report.Port{Num: i + 1, PortAttr: p})
	}
	return r
}

// coordinator returns nil for a device that no other process uses.
func coordinator(s device.Status) *report.Coordinator {
	if !s.Coordinator.Shared {
		return nil
	}
	c := &report.Coordinator{
		Phase: s.Coordinator.Intent.Phase.String(), Leading: s.Coordinator.State.Leads(), Members: append([]string{}, s.Sharers...),
	}
	if l := s.Coordinator.Leader; l != (resetlock.Process{}) {
		c.Leader = &report.Leader{PID: l.PID, Name: l.Name, SilentSince: l.Since}
	}
	if s.Coordinator.Err != nil {
		c.Trouble = s.Coordinator.Err.Error()
	}
	return c
}
