package iface

import (
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/freeze"
	"ipoibd/ud"
)

// watch looks for a queue pair that has frozen (R8).
type watch struct {
	detector *freeze.Detector
	probes   uint64 // sent
}

func newWatch() watch { return watch{detector: freeze.New(freeze.Config{})} }

// restart makes the detector start over, for a queue pair that works again.
func (w *watch) restart() { w.detector.Restart() }

// deadline is when the next sample is due.
func (w *watch) deadline(now time.Time) time.Time {
	at, ok := w.detector.NextDeadline()
	if !ok {
		return now
	}
	return at
}

// look takes a sample when it is due.
func (f *Iface) look(now time.Time) {
	w := &f.rec.watch
	if f.fab.att == nil || now.Before(w.deadline(now)) {
		return
	}
	s := f.sample()
	f.judge(w.detector.Step(now, &s))
}

// sample describes the data path. While a pump has ended and is not running again yet,
// the path is not expected to work.
func (f *Iface) sample() freeze.Sample {
	a, tx := f.fab.att, f.path.tx.Progress()
	return freeze.Sample{
		Completed:  tx.Completed,
		Waiting:    tx.Waiting,
		Refused:    tx.Refused,
		Received:   f.path.rx.Completed(),
		Probed:     tx.Probed,
		Wire:       a.session.WireBlocked(),
		Port:       f.portState(),
		Recovering: f.rec.ladder.State() != qprecovery.Healthy || !a.tx.running || !a.rx.running,
	}
}

func (f *Iface) portState() hca.PortState {
	if ports := f.fab.dev.View().Ports; int(f.cfg.Port) <= len(ports) {
		return ports[f.cfg.Port-1].State
	}
	return hca.PortNop
}

// judge does what the detector decided. Without health it decides nothing.
func (f *Iface) judge(d freeze.Decision) {
	a := f.fab.att
	if f.rec.ladder.State() != qprecovery.Healthy {
		return
	}
	switch d.Kind {
	case freeze.Poll:
		a.tx.wake()
		a.rx.wake()
	case freeze.SendProbe:
		f.rec.watch.probes++
		f.path.tx.Inject(a.ep.Self(), ud.ProbeMessage(d.Probe))
	case freeze.Suspect:
		reason := "sends do not complete"
		if d.Deaf {
			reason = "nothing is received"
		}
		f.log.Error("queue pair seems to have frozen", "reason", reason, "last_worked", d.Since)
		f.heal(qprecovery.Suspected{Gen: a.gen, Since: d.Since})
	case freeze.Nothing:
	}
}
