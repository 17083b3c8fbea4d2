package device

import (
	"context"
	"fmt"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// owner is what Run's goroutine owns. It decides nothing: it carries out the actions of
// the machine and reports what comes of them. What takes time runs on a goroutine of its
// own, counted in work, and answers by tell.
type owner struct {
	*Device
	ctx     context.Context // of Run
	machine *qprecovery.DeviceLadder
	work    sync.WaitGroup

	session *Session           // that is open and used; nil: none
	ports   []hca.PortAttr     // of session
	closing *Session           // that its users have to release; nil: none
	cancel  context.CancelFunc // ends the opening under way; nil: there is none
	cause   error              // why the last opening failed

	lists    <-chan []qprecovery.Identity // nil: none come
	commands uint64                       // so far; numbers them
	answers  map[uint64]chan<- error      // of commands that are not answered
}

// Run keeps the HCA open until ctx ends; the users must have released it by then, or Run
// waits for them. It is called once.
func (d *Device) Run(ctx context.Context) {
	defer close(d.ended)
	o := &owner{Device: d, ctx: ctx, answers: map[uint64]chan<- error{}}
	o.machine = qprecovery.NewDeviceLadder(time.Now(), qprecovery.DeviceConfig{
		GiveUpAfter: d.cfg.GiveUpAfter, Grace: d.cfg.Grace, ResetLimit: reset.DefaultLimit,
		AllowForeign: d.cfg.AllowForeign, Lists: d.cfg.List != nil,
	})
	if d.cfg.List != nil {
		o.lists = d.cfg.List.Watch(ctx)
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		next := time.Hour // far enough away to be none
		if at, ok := o.machine.NextDeadline(); ok {
			next = min(next, time.Until(at))
		}
		timer.Reset(next)
		o.await(timer.C)
	}
	o.end()
}

// await takes one thing that happened.
func (o *owner) await(timer <-chan time.Time) {
	var resets <-chan resetlock.Event
	if c := o.shared.Load(); c != nil {
		resets = (*c).Events()
	}
	select {
	case <-o.ctx.Done():
	case f := <-o.calls:
		f(o)
	case a := <-o.asked:
		o.step(a)
	case ids, ok := <-o.lists:
		if ok {
			o.step(qprecovery.Listed{Devices: ids})
		}
	case ev := <-resets:
		o.hear(ev)
	case <-timer:
		o.step(qprecovery.Tick{})
	}
}

// tell hands the result of another goroutine to Run's; false: that has ended.
func (o *owner) tell(f func(*owner)) bool {
	select {
	case o.calls <- f:
		return true
	case <-o.ctx.Done():
		return false
	}
}

// end closes what is open once its users have released it, then the coordinator.
func (o *owner) end() {
	if o.session != nil {
		o.retire()
	}
	o.publish(View{Err: ErrEnded})
	o.work.Wait()
	if c := o.shared.Load(); c != nil {
		_ = (*c).Close() // it has nothing to fail with
	}
}

// hear takes an event of the coordinator.
func (o *owner) hear(ev resetlock.Event) {
	switch ev := ev.(type) {
	case resetlock.Pending:
		o.step(qprecovery.ResetPending{ID: uint64(ev.ID)})
	case resetlock.Ended:
		if ev.Outcome != reset.OutcomeDone {
			o.note(describe(ev.Ended))
		}
		o.step(qprecovery.ResetEnded{ID: uint64(ev.Reset), Outcome: outcomes[ev.Outcome]})
	case resetlock.Silent:
		o.record(fmt.Sprintf("%s, has not gone on since %s; the device is not reset without it: let that process continue, or end it",
			ev.Leader, ev.Leader.Since.Format(time.TimeOnly)))
	case resetlock.Answers:
		o.record(fmt.Sprintf("%s, goes on again", ev.Leader))
	}
}

var outcomes = map[reset.Outcome]qprecovery.ResetOutcome{
	reset.OutcomeDone:    qprecovery.ResetDone,
	reset.OutcomeFailed:  qprecovery.ResetFailed,
	reset.OutcomeTimeout: qprecovery.ResetTimedOut,
	reset.OutcomeHeld:    qprecovery.ResetHeld,
	reset.OutcomeDenied:  qprecovery.ResetFailed,
	reset.OutcomeAbsent:  qprecovery.ResetNoDevice,
}

// reset is what the coordinator calls once every other process has released the device.
func (d *Device) reset(ctx context.Context, how reset.Reset) error {
	if how.Abandon {
		err := d.ask(ctx, func(o *owner, done chan<- error) { o.step(qprecovery.GraceOver{}); done <- nil })
		if err != nil {
			return err
		}
	}
	switch {
	case how.Complete && d.cfg.Complete != nil:
		return d.cfg.Complete(ctx)
	case d.cfg.Reset != nil:
		return d.cfg.Reset(ctx)
	}
	return nil
}

// step gives the machine an event, carries out its actions and shows the result.
func (o *owner) step(ev qprecovery.DeviceEvent) {
	for _, a := range o.machine.Step(time.Now(), ev, nil) {
		o.act(a)
	}
	o.show()
}

func (o *owner) act(a qprecovery.DeviceAction) {
	switch a := a.(type) {
	case qprecovery.Open:
		o.open(a)
	case qprecovery.CancelOpen:
		o.cancel()
	case qprecovery.Close:
		o.close(a)
	case qprecovery.Abandon:
		o.abandon()
	case qprecovery.RequestReset:
		(*o.shared.Load()).Request()
	case qprecovery.Released:
		(*o.shared.Load()).Released(reset.ID(a.ID))
	case qprecovery.Refresh:
		o.refresh(a.Op)
	case qprecovery.Check:
		o.check(a.Gen)
	case qprecovery.Entered:
		o.cfg.Journal.Add(journal.Entered(o.cfg.Name, a))
	case qprecovery.Ended:
		o.cfg.Journal.Add(journal.Ended(o.cfg.Name, a))
	case qprecovery.Paused:
		o.note(fmt.Sprintf("its resets do not last; pausing %s before it is opened again", a.For.Round(time.Second)))
	case qprecovery.GiveUp:
		o.note("not waited for any more; order `ipoibd recover` once it is back")
	case qprecovery.ReportForeign:
		o.note(fmt.Sprintf("another device came and is left alone: node GUID %s, index %d; allow_other_device would take it", a.Identity.NodeGUID, a.Identity.Index))
	case qprecovery.Answer:
		o.answers[a.ID] <- results[a.Result]
		delete(o.answers, a.ID)
	}
}
