package iface

import (
	"time"

	"ipoibd/cmd/ipoibd/internal/diagnose"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/freeze"
	"ipoibd/ud"
)

// stir takes a sample of the lanes that rest, because one has work again.
func (r *recovery) stir(now time.Time) {
	for _, l := range r.lanes.all {
		if r.fabric.att != nil && l.detector.Resting() {
			r.sample(l, now)
		}
	}
}

// sample takes a sample of a lane and carries out the decision of its freeze detector, which
// judges nothing while the ladder is not healthy (R8).
func (r *recovery) sample(l *lane, now time.Time) {
	l.resting.Store(true) // before the counts are read, so that what they miss wakes Run
	sendRounds, recvRounds := l.out.rounds.Load(), l.in.rounds.Load()
	tx := l.tx.Progress()
	s := freeze.Sample{
		Completed: tx.Completed, Waiting: tx.Waiting, Refused: tx.Refused, Probed: tx.Probed,
		SendRounds: sendRounds, RecvRounds: recvRounds,
		Received: l.rx.Completed(), Wire: r.fabric.att.session.WireBlocked(), Port: hca.PortNop,
		Limited: r.fabric.att.plan.Limited,
		// The lane is not expected to work while one of its pumps waits to be restarted.
		Recovering: r.ladder.State() != qprecovery.Healthy || !l.out.running || !l.in.running,
	}
	if ports := r.fabric.dev.View().Ports; int(r.fabric.want.Port) <= len(ports) {
		s.Port = ports[r.fabric.want.Port-1].State
	}
	knew := l.detector.EventsLost()
	d := l.detector.Step(now, &s)
	if !l.detector.Resting() {
		l.resting.Store(false)
	}
	l.polled.Store(l.detector.FoundByPoll())
	switch lost := l.detector.EventsLost(); {
	case lost && !knew:
		r.log.Warn(diagnose.EventsLost)
	case knew && !lost:
		r.log.Info("the completion events of the device arrive again")
	}
	if r.ladder.State() != qprecovery.Healthy {
		return
	}
	switch d.Kind {
	case freeze.Poll:
		l.out.wake()
		l.in.wake()
	case freeze.SendProbe:
		l.probes.Add(1)
		l.tx.Inject(r.fabric.att.self, ud.ProbeMessage(d.Probe))
	case freeze.Suspect:
		if d.EventsLost {
			r.step(qprecovery.Suspected{Gen: r.fabric.att.gen, Since: d.Since, EventsLost: true})
			return
		}
		reason := "sends do not complete"
		if d.Unanswered {
			reason = "nothing is received"
		}
		r.log.Error("queue pair seems to have frozen", "reason", reason, "last_worked", d.Since)
		r.step(qprecovery.Suspected{Gen: r.fabric.att.gen, Since: d.Since})
	case freeze.Nothing:
	}
}
