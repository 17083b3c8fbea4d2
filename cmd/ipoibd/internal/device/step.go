package device

import (
	"fmt"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// step gives the ladder an event, and does and tells what comes of it.
func (o *owner) step(ev qprecovery.DeviceEvent) {
	actions := o.ladder.Step(time.Now(), ev, nil)
	o.tracker.Update(o.ladder.History()) // before what the actions note
	for _, a := range actions {
		o.act(a)
	}
	o.show()
}

func (o *owner) act(a qprecovery.DeviceAction) {
	switch a := a.(type) {
	case qprecovery.Drop:
		o.drop(a)
	case qprecovery.Open:
		o.opening.next, o.opening.op = a, a.Op
	case qprecovery.Refresh:
		o.refresh()
	case qprecovery.Check:
		o.check(a.Gen)
	case qprecovery.GiveUp:
		o.note("not waited for any more; order `ipoibd recover` once it is back")
	case qprecovery.ReportForeign:
		o.note(fmt.Sprintf("another device came and is left alone: node GUID %s, index %d; allow_other_device would take it", a.Identity.NodeGUID, a.Identity.Index))
	}
}

// note tells the operator, in log and journal.
func (o *owner) note(text string) {
	o.log.Warn("device: " + text)
	o.record(text)
}

// record tells the operator in the journal what is in the log already.
func (o *owner) record(text string) {
	o.cfg.Journal.Add(journal.Entry{Scope: o.cfg.Name, Kind: journal.KindNote, Text: text})
}

// show publishes state and view as they are now.
func (o *owner) show() {
	before, now := o.status.Load().State, o.newStatus()
	o.status.Store(now)
	if now.State == qprecovery.DevicePausing && before != now.State {
		o.note(fmt.Sprintf("its resets do not last; pausing %s before it is opened again", time.Until(now.NextTry).Round(time.Second)))
	}
	if next := o.look(); !sameView(o.View(), next) {
		o.publish(next)
	}
}

// newStatus is what the ladder has to tell.
func (o *owner) newStatus() *Status {
	l := o.ladder
	s := &Status{State: l.State(), Reason: l.Reason(), Suspended: l.Suspended(), History: l.History(), Counts: l.Counts()}
	s.NextTry, _ = l.NextTry()
	s.GivesUp, _ = l.GivesUp()
	return s
}

func sameView(a, b View) bool {
	return a.Session == b.Session && a.GaveUp == b.GaveUp && fmt.Sprint(a.Err) == fmt.Sprint(b.Err)
}

// look is the view as the state has it.
func (o *owner) look() View {
	switch s := o.ladder.State(); s {
	case qprecovery.DeviceHealthy:
		return View{Session: o.session, Ports: o.ports}
	case qprecovery.DeviceGivenUp:
		return View{Err: fmt.Errorf("device %s is not waited for any more; order `ipoibd recover` once it is back", o.cfg.Name), GaveUp: true}
	case qprecovery.DeviceSuspending, qprecovery.DeviceSuspended:
		return View{Err: ErrSuspended}
	case qprecovery.DeviceReleasing, qprecovery.DeviceWaiting, qprecovery.DeviceRetrying:
		return View{Err: o.lost()}
	default:
		return View{Err: fmt.Errorf("device %s is being reset: %s", o.cfg.Name, o.ladder.Reason())}
	}
}

// lost is why the device is waited for: it is gone, or there and could not be reset
// or opened.
func (o *owner) lost() error {
	text := "is lost; waiting for its return"
	if slices.ContainsFunc(o.present, o.ladder.Identity().Same) {
		text = fmt.Sprintf("cannot be opened (%s); trying again", o.ladder.Reason())
	}
	if o.cause == nil {
		return fmt.Errorf("device %s %s", o.cfg.Name, text)
	}
	return fmt.Errorf("device %s %s: %w", o.cfg.Name, text, o.cause)
}
