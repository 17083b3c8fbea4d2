package device

import (
	"time"

	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
)

// Report describes the device at the time now, except what only its HCA knows. Any goroutine
// may call it; it reads what Run has published, and atomic counters.
func (d *Device) Report(now time.Time) report.Device {
	view, status := d.View(), d.Status()
	r := report.Device{
		Name: d.cfg.Name, State: status.State.String(), Reason: status.Reason.String(), Since: status.Since,
		Opens: d.Opens(), Attr: status.Attr, Ports: []report.Port{},
		Notices: report.Notices{}, Counters: report.Counters{},
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
		r.Counters.Add("", view.Session.Counters())
		r.Counters.Add("", view.Session.subnets.counters())
		r.Drops = r.Counters.Drops()
	}
	for i, p := range view.Ports {
		p.GIDs, p.PKeys = append([]hca.GIDEntry{}, p.GIDs...), append([]hca.PKey{}, p.PKeys...) // never null
		r.Ports = append(r.Ports, report.Port{Num: i + 1, PortAttr: p})
	}
	return r
}

// coordinator returns nil for a device that no other process uses.
func coordinator(s Status) *report.Coordinator {
	if !s.Coordinator.Shared {
		return nil
	}
	c := &report.Coordinator{
		Phase:   s.Coordinator.Intent.Phase.String(),
		Leading: s.Coordinator.State.Leads(),
		Members: append([]string{}, s.Sharers...),
	}
	if l := s.Coordinator.Leader; l != (resetlock.Process{}) {
		c.Leader = &report.Leader{PID: l.PID, Name: l.Name, SilentSince: l.Since}
	}
	if s.Coordinator.Err != nil {
		c.Trouble = s.Coordinator.Err.Error()
	}
	return c
}
