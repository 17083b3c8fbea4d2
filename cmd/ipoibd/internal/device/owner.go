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

// owner is what Run's goroutine owns. What takes time runs on a goroutine of its
// own, counted in work, and answers by tell.
type owner struct {
	*Device
	ctx     context.Context          // of Run
	ladder  *qprecovery.DeviceLadder // nil: it was not open yet
	tracker *journal.Tracker
	work    sync.WaitGroup

	starting starting

	session *Session       // that is open and used; nil: none
	ports   []hca.PortAttr // of session
	cause   error          // why the last opening failed
	leaving *leaving       // a session that is being let go; nil: none
	opening opening
	pending pending
	clean   bool // reset since it was open last

	lists      <-chan []qprecovery.Identity // nil: nobody tells
	told       int                          // how many came
	present    []qprecovery.Identity
	refreshing bool

	suspends []chan<- error // callers of Suspend
}

// pending is the reset that the coordinator has told of; an ID of 0: none.
type pending struct {
	id       reset.ID
	released bool // we have said that we hold nothing
}

// Run keeps the HCA open until ctx ends; the users must have let go by then, or
// it waits for them. It is called once.
func (d *Device) Run(ctx context.Context) {
	defer close(d.ended)
	o := &owner{Device: d, ctx: ctx, tracker: journal.NewTracker(d.cfg.Journal, d.cfg.Name)}
	if o.start() {
		o.serve()
	}
	o.end()
}

// serve does what there is to do until ctx ends.
func (o *owner) serve() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for o.ctx.Err() == nil {
		o.advance()
		timer.Reset(time.Until(o.deadline()))
		o.await(timer.C)
	}
}

// await takes one thing that happened.
func (o *owner) await(timer <-chan time.Time) {
	select {
	case <-o.ctx.Done():
	case f := <-o.calls:
		f(o)
	case r := <-o.asked:
		o.step(qprecovery.Asked{Reason: r})
	case ids, ok := <-o.lists:
		if ok {
			o.told++
			o.listed(ids)
		}
	case ev := <-o.shared.Load().Events():
		o.hear(ev)
	case <-timer:
		o.expire()
	}
}

// noDeadline is far enough away to be none.
const noDeadline = time.Hour

func (o *owner) deadline() time.Time {
	next := time.Now().Add(noDeadline)
	if at, ok := o.ladder.NextDeadline(); ok && at.Before(next) {
		next = at
	}
	if l := o.leaving; l != nil && !l.patience.IsZero() && l.patience.Before(next) {
		next = l.patience
	}
	return next
}

func (o *owner) expire() {
	if l := o.leaving; l != nil && !l.patience.IsZero() && !time.Now().Before(l.patience) {
		o.abandon()
	}
	o.step(qprecovery.Tick{})
}

// advance does what has become possible, until there is nothing more.
func (o *owner) advance() {
	for o.finishLeaving() || o.joinReset() {
	}
	o.sayReleased()
	o.beginOpening()
	o.answerSuspends()
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

// end closes what is open once its users have let go, then says goodbye to those
// who share the device.
func (o *owner) end() {
	if o.session != nil {
		o.letGo()
	}
	o.publish(View{Err: ErrEnded})
	o.work.Wait()
	if c := o.shared.Load(); c != nil {
		_ = c.Close() // it has nothing to fail with
	}
}

// hear takes what the coordinator tells.
func (o *owner) hear(ev resetlock.Event) {
	switch ev := ev.(type) {
	case resetlock.Pending:
		o.pending = pending{id: ev.ID}
	case resetlock.Ended:
		o.clean = o.clean || o.pending.released && ev.Outcome == reset.OutcomeDone
		o.pending = pending{}
		o.resetEnded(ev.Ended)
	case resetlock.Silent:
		o.record(fmt.Sprintf("%s, has not gone on since %s; the device is not reset without it: let that process continue, or end it",
			ev.Leader, ev.Leader.Since.Format(time.TimeOnly)))
	case resetlock.Answers:
		o.record(fmt.Sprintf("%s, goes on again", ev.Leader))
	}
}

// joinReset lets the device go for a reset that somebody else asked for; true
// when it did.
func (o *owner) joinReset() bool {
	if o.pending.id == 0 || o.ladder.State() != qprecovery.DeviceHealthy {
		return false
	}
	o.step(qprecovery.Asked{Reason: qprecovery.ReasonDeviceReset})
	return true
}

// sayReleased tells the coordinator once that nothing is held of the device.
func (o *owner) sayReleased() {
	holds := o.session != nil || o.leaving != nil && !o.leaving.closed || o.opening.busy
	if o.pending.id != 0 && !o.pending.released && !holds {
		o.pending.released = true
		o.shared.Load().Released(o.pending.id)
	}
}
