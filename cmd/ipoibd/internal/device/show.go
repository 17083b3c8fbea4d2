package device

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/qprecovery"
)

// note reports something to the operator, in log and journal.
func (o *owner) note(text string) {
	o.log.Warn("device: " + text)
	o.record(text)
}

// record reports in the journal what is in the log already.
func (o *owner) record(text string) {
	o.cfg.Journal.Add(journal.Entry{Scope: o.cfg.Name, Kind: journal.KindNote, Text: text})
}

// show publishes state and view as they are now.
func (o *owner) show() {
	m := o.machine
	was := o.status.Load()
	s := &Status{
		State: m.State(), Since: time.Now(), Rung: m.Rung(), Reason: m.Reason(), Suspended: m.Suspended(),
		History: m.History(), Counts: m.Counts(), Attr: was.Attr, LastError: o.cause,
	}
	if s.State == was.State {
		s.Since = was.Since
	}
	if o.session != nil {
		attr := o.session.Attr()
		s.Attr = &attr
	}
	s.NextTry, _ = m.NextTry()
	s.GivesUp, _ = m.GivesUp()
	o.status.Store(s)
	next, last := o.look(), o.View()
	if next.Session != last.Session || next.GaveUp != last.GaveUp || fmt.Sprint(next.Err) != fmt.Sprint(last.Err) {
		o.publish(next)
	}
}

// look returns the view that the state has. While the device is started that is what the
// last try left.
func (o *owner) look() View {
	state, rung := o.machine.State(), o.machine.Rung()
	switch {
	case state == qprecovery.DeviceHealthy:
		return View{Session: o.session, Ports: o.ports}
	case state == qprecovery.DeviceGivenUp:
		return View{Err: fmt.Errorf("device %s is not waited for any more; order `ipoibd recover` once it is back", o.cfg.Name), GaveUp: true}
	case state == qprecovery.DeviceSuspended,
		state == qprecovery.DeviceDropping && rung == qprecovery.RungSuspend,
		state == qprecovery.DeviceStarting && o.machine.Suspended():
		return View{Err: ErrSuspended}
	case state == qprecovery.DeviceStarting && errors.Is(o.View().Err, ErrSuspended):
		return View{Err: ErrNotOpen}
	case state == qprecovery.DeviceStarting:
		return o.View()
	case rung == qprecovery.RungWait:
		return View{Err: o.lost()}
	default:
		return View{Err: fmt.Errorf("device %s is being reset: %s", o.cfg.Name, o.machine.Reason())}
	}
}

// lost is why the device is waited for: it is gone, or there and could not be reset
// or opened.
func (o *owner) lost() error {
	text := "is lost; waiting for its return"
	if o.machine.Listed() {
		text = fmt.Sprintf("cannot be opened (%s); trying again", o.machine.Reason())
	}
	if o.cause == nil {
		return fmt.Errorf("device %s %s", o.cfg.Name, text)
	}
	return fmt.Errorf("device %s %s: %w", o.cfg.Name, text, o.cause)
}
