package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// owner is the state of Run's goroutine. It decides nothing: it carries out the actions of
// the device's machine, and reports the results to it. Slow work runs on its own goroutine,
// is counted in work, and reports its result by tell.
type owner struct {
	cfg     Config
	log     *slog.Logger
	ctx     context.Context // of Run
	calls   chan func(*owner)
	public  *publisher
	machine *qprecovery.DeviceLadder
	locks   *locks
	queue   []func() // events for the machine
	work    sync.WaitGroup

	session   *Session        // that is open, or that its users have to release; nil: none
	ports     ports           // of session
	attr      *hca.DeviceAttr // of the last session
	opens     uint64
	opener    *opener
	opening   opening
	resetting resetting
	cause     error // why the last opening or reset failed; nil: it succeeded

	commands uint64                  // so far; numbers them
	answers  map[uint64]chan<- error // of commands that are not answered
}

// resetting is the latest reset.
type resetting struct {
	cancel  context.CancelFunc
	late    reset.Event // its result, if that came after the end of Run's context
	failure string      // that was noted last in this recovery; "": none was
}

// newOwner returns the owner of a device that was never open.
func newOwner(cfg Config, calls chan func(*owner), public *publisher) *owner {
	log := cfg.Log.With("device", cfg.Name)
	o := &owner{
		cfg: cfg, log: log, calls: calls, public: public,
		locks:     &locks{cfg: cfg, log: log, public: public},
		ports:     ports{families: map[int]string{}},
		opener:    &opener{open: cfg.Open, log: log},
		resetting: resetting{cancel: func() {}},
		answers:   map[uint64]chan<- error{},
	}
	o.machine = qprecovery.NewDeviceLadder(time.Now(), o.ladder())
	o.show()
	return o
}

// noDeadline is so far away that it never comes.
const noDeadline = time.Hour

// Run keeps the HCA open until ctx ends, then waits until its users have released it. It
// must be called only once.
func (d *Device) Run(ctx context.Context) {
	defer close(d.ended)
	o := d.owner
	o.ctx = ctx
	if d.suspended {
		o.command(qprecovery.DoSuspend, make(chan error, 1)) // buffered, because no goroutine receives from it
	}
	lists := d.cfg.List.Watch(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		var changes <-chan struct{}
		if o.locks.sharer != nil {
			changes = o.locks.sharer.Changes()
		}
		wait := noDeadline
		if next, ok := o.machine.NextDeadline(); ok {
			wait = time.Until(next)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case f := <-d.calls:
			f(o)
		case a := <-d.asked:
			o.step(a)
		case ids, ok := <-lists:
			if !ok { // ctx has ended
				lists = nil
				break
			}
			o.step(qprecovery.Listed{Devices: ids})
		case <-changes:
			o.step(qprecovery.ResetEvent{Event: reset.Event{Kind: reset.Look}})
		case <-timer.C:
			o.step(qprecovery.Tick{})
		}
	}
	o.end()
}

// tell passes the result of another goroutine to Run. It returns false if Run has ended.
func (o *owner) tell(f func(*owner)) bool {
	select {
	case o.calls <- f:
		return true
	case <-o.ctx.Done():
		return false
	}
}

// end closes the session once its users have released it, and then releases the locks.
func (o *owner) end() {
	if o.session != nil {
		o.session.retire()
	}
	last := *o.public.last.Load()
	last.view = View{Err: ErrEnded}
	o.public.publish(last)
	o.work.Wait()
	if o.locks.sharer == nil {
		return
	}
	if o.resetting.late.Kind == reset.Done {
		o.locks.sharer.Step(time.Now(), o.resetting.late, nil)
	}
	o.locks.sharer.Close()
}

// ladder returns the configuration of the device's machine.
func (o *owner) ladder() qprecovery.DeviceConfig {
	return qprecovery.DeviceConfig{
		GiveUpAfter: o.cfg.GiveUpAfter, Grace: o.cfg.Grace,
		AllowForeign: o.cfg.AllowForeign, NoReset: o.cfg.NoReset, Join: o.locks.join,
	}
}

// command passes an operator's command to the machine. done receives the answer.
func (o *owner) command(do qprecovery.Do, done chan<- error) {
	o.commands++
	o.answers[o.commands] = done
	o.step(qprecovery.Command{ID: o.commands, Do: do})
}

// do calls f after the functions queued before it: to carry out an action may be an event.
func (o *owner) do(f func()) {
	o.queue = append(o.queue, f)
	if len(o.queue) > 1 {
		return // the outer call of do calls it
	}
	for ; len(o.queue) > 0; o.queue = o.queue[1:] {
		o.queue[0]()
	}
	o.show()
}

// step passes an event to the machine of the device, and carries out its actions.
func (o *owner) step(ev qprecovery.DeviceEvent) {
	o.do(func() {
		suspended := o.machine.Suspended()
		actions := o.machine.Step(time.Now(), ev, nil)
		if suspended && !o.machine.Suspended() {
			o.log.Info("device resumed")
			o.cause = nil // it was before the suspension
		}
		for _, a := range actions {
			o.act(a)
		}
	})
}

func (o *owner) act(a qprecovery.DeviceAction) {
	switch a := a.(type) {
	case qprecovery.Open:
		o.open(a)
	case qprecovery.CancelOpen:
		o.opening.cancel()
	case qprecovery.Close:
		o.close(a)
	case qprecovery.Abandon:
		o.abandon()
	case qprecovery.ResetAction:
		o.agreed(a.Action)
	case qprecovery.Refresh:
		o.work.Go(func() {
			ids := o.cfg.List.List(o.ctx)
			o.tell(func(o *owner) { o.step(qprecovery.Listed{Op: a.Op, Devices: ids}) })
		})
	case qprecovery.Check:
		o.check(a.Gen)
	case qprecovery.Entered:
		o.cfg.Journal.Add(report.Entered(o.cfg.Name, a))
	case qprecovery.Ended:
		o.resetting.failure = ""
		o.cfg.Journal.Add(report.Ended(o.cfg.Name, a))
	case qprecovery.Paused:
		o.note(fmt.Sprintf("the device keeps failing after each reset; waiting %s before reopening it "+
			"('ipoibd recover' reopens it now)", a.For.Round(time.Second)))
	case qprecovery.GiveUp:
		o.note("gave up waiting for the device; run 'ipoibd recover' when it is back")
	case qprecovery.ReportForeign:
		text := fmt.Sprintf("another device appeared and is not used: node GUID %s, index %d; "+
			"set allow_other_device to use it", a.Identity.NodeGUID, a.Identity.Index)
		if o.cfg.Underlay != "" {
			text += fmt.Sprintf(", or give %s its former MAC", o.cfg.Underlay)
		}
		o.note(text)
		o.cause = errors.New(text)
	case qprecovery.Answer:
		o.resetting.failure = "" // an operator's reset is answered again
		o.answers[a.ID] <- results[a.Result]
		delete(o.answers, a.ID)
	}
}

// agreed carries out what the processes that share the device have agreed about its resets.
func (o *owner) agreed(a reset.Action) {
	switch a := a.(type) {
	case reset.Release:
		if a.Intent.Phase != reset.PhaseIdle {
			o.log.Info("a reset of the shared device is pending",
				"reset", a.Intent.Number, "requested_by", a.Intent.Leader)
		}
	case reset.Ended:
		o.resetting.cancel() // it may have exceeded its limit
		if a.Outcome == reset.OutcomeDone {
			o.cause, o.resetting.failure = nil, ""
			o.log.Info("the device was reset")
			return
		}
		text := "not reset: " + string(a.Outcome)
		if a.Detail != "" { // such as the processes that hold it (R16)
			text += ": " + a.Detail
		}
		if text != o.resetting.failure { // the same failure may repeat every few seconds
			o.note(text)
		}
		o.cause, o.resetting.failure = errors.New(text), text
	case reset.Reset:
		o.reset(a)
	case reset.Silent:
		o.note(fmt.Sprintf("%s, has made no progress since %s; the device cannot be reset without it: "+
			"resume that process, or kill it", o.locks.sharer.Status().Leader, a.Since.Format(time.TimeOnly)))
	case reset.Answers:
		o.note("the daemon that resets the device has resumed")
	}
}

// reset resets the HCA, which every other process has released. The machine limits how long it may take.
func (o *owner) reset(how reset.Reset) {
	act := o.cfg.Reset
	if how.Complete {
		act = o.cfg.Complete
	}
	o.log.Info("resetting the device", "forced", how.Abandon, "resuming_interrupted_reset", how.Complete)
	ctx, cancel := context.WithCancel(o.ctx)
	o.resetting.cancel = cancel
	o.work.Go(func() {
		defer cancel()
		done := resetlock.Done(act(ctx))
		if !o.tell(func(o *owner) { o.step(qprecovery.ResetEvent{Event: done}) }) {
			o.resetting.late = done
		}
	})
}

// note reports something to the operator, in log and journal.
func (o *owner) note(texts ...string) {
	for _, text := range texts {
		o.log.Warn(text)
		o.cfg.Journal.Add(journal.Entry{Scope: o.cfg.Name, Kind: journal.KindNote, Text: text})
	}
}

// show publishes the present state and view, and logs a suspension.
func (o *owner) show() {
	s := Status{DeviceStatus: o.machine.Status(), Attr: o.attr, LastError: o.cause}
	if s.State == qprecovery.DeviceSuspended && o.public.last.Load().status.State != s.State {
		o.log.Info("device suspended; it stays closed until 'ipoibd resume'")
	}
	if o.locks.sharer != nil {
		s.Coordinator = o.locks.sharer.Status()
	}
	v := o.look(s)
	if s.State == qprecovery.DeviceStarting && !errors.Is(v.Err, ErrNotOpen) {
		s.LastError = v.Err
	}
	o.public.publish(published{v, s, o.opens})
}

// look returns the view of a state.
func (o *owner) look(s Status) View {
	name := o.cfg.Name
	switch {
	case s.State == qprecovery.DeviceHealthy:
		return View{Session: o.session, Ports: o.ports.attrs, Underlay: o.cfg.Underlay}
	case s.State == qprecovery.DeviceGivenUp:
		return View{
			Err:    fmt.Errorf("ipoibd has stopped waiting for device %s; run 'ipoibd recover' when it is back", name),
			GaveUp: true,
		}
	case s.State == qprecovery.DeviceSuspended,
		s.State == qprecovery.DeviceDropping && s.Rung == qprecovery.RungSuspend,
		s.State == qprecovery.DeviceStarting && s.Suspended:
		return View{Err: ErrSuspended}
	case s.State == qprecovery.DeviceStarting:
		if l := s.Coordinator; l.Shared && l.State <= reset.StateWaiting {
			return View{Err: fmt.Errorf("device %s is shared: waiting for %s", name, l.Leader)}
		}
		return View{Err: cmp.Or(o.cause, ErrNotOpen)}
	case s.State == qprecovery.DevicePausing:
		return View{Err: fmt.Errorf("device %s keeps failing after each reset; waiting before reopening it; "+
			"'ipoibd recover' reopens it now", name)}
	case s.Rung != qprecovery.RungWait:
		return View{Err: fmt.Errorf("device %s is being reset: %s", name, s.Reason)}
	case s.Dead:
		return View{Err: fmt.Errorf("the kernel has no RDMA device of %s, although its PCI function is present; "+
			"waiting for its driver, then resetting it", name)}
	case !s.Listed && o.cfg.Underlay != "":
		return View{Err: fmt.Errorf("device %s is lost; waiting for it to come back on %s", name, o.cfg.Underlay)}
	case !s.Listed:
		return View{Err: fmt.Errorf("device %s is lost; waiting for it to come back", name)}
	case o.cause == nil:
		return View{Err: fmt.Errorf("device %s cannot be opened (%s); retrying", name, s.Reason)}
	}
	return View{Err: fmt.Errorf("device %s cannot be opened (%s): %w; retrying", name, s.Reason, o.cause)}
}
