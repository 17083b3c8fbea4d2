package iface

import (
	"time"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/freeze"
	"ipoibd/ud"
)

// watch looks for a device that has frozen (R8).
type watch struct {
	detector *freeze.Detector
	posts    freeze.Posts
	probes   uint64 // sent
}

func newWatch() watch { return watch{detector: freeze.New(freeze.Config{})} }

// restart judges a queue pair that was made to work anew.
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
	s := f.sample(now)
	f.judge(w.detector.Step(now, &s))
}

func (f *Iface) sample(now time.Time) freeze.Sample {
	tx, rx := f.path.tx.Progress(), f.path.rx.Progress()
	return freeze.Sample{
		Completed:  tx.Completed,
		OldestPost: f.rec.watch.posts.Oldest(now, tx.Posted, tx.Completed+tx.TakenBack),
		Received:   rx.Completed,
		Answered:   f.path.rx.Probed(),
		Port:       f.portState(),
		Recovering: f.rec.ladder.State() != qprecovery.Healthy,
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
	case freeze.Frozen:
		f.log.Error("device has frozen", "reason", d.Reason.String(), "last_worked", d.Since)
		f.heal(qprecovery.Frozen{Gen: a.gen, Reason: frozenReasons[d.Reason], Since: d.Since})
	case freeze.Nothing:
	}
}

var frozenReasons = map[freeze.Reason]qprecovery.Reason{
	freeze.SendTimeout:        qprecovery.ReasonSendTimeout,
	freeze.CompletionsStopped: qprecovery.ReasonCompletionsStopped,
	freeze.DeafReceive:        qprecovery.ReasonDeafReceive,
}
