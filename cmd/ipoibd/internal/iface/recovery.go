package iface

import (
	"cmp"
	"context"
	"errors"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/hca"
	"ipoibd/link"
	"ipoibd/qprecovery"
	"ipoibd/ud"
)

// maxFaults bounds the faults that wait for Run: one is as good as many.
const maxFaults = 64

// recovery is the interface's ladder and what carries its actions out.
type recovery struct {
	ladder  ladder
	journal *journal.Journal
	actions []qprecovery.Action
	queue   []qprecovery.Event // to be taken, in order
	healing bool               // heal is under way
	carrier error              // why the carrier cannot be raised, until heal ends
	stale   stale
	told    deviceState // what the ladder was told of the device

	worker    worker
	watch     watch
	pumps     backoff // of starting pumps that ended for a reason that is no fault
	badClient badClient
	faults    chan qprecovery.Fault // of the data path and of async events
	flushes   chan qprecovery.Fault // the same, of flushed work requests alone
}

// ladder is a [qprecovery.Ladder].
type ladder interface {
	Step(now time.Time, ev qprecovery.Event, out []qprecovery.Action) []qprecovery.Action
	NextDeadline() (at time.Time, ok bool)
	NextGen() uint32
	Takes(ev qprecovery.Order) bool
	State() qprecovery.State
	Reason() qprecovery.Reason
	History() []qprecovery.Record
	Counts() qprecovery.Counts
}

// deviceState is what the ladder may be told of the device.
type deviceState uint8

const (
	deviceUp deviceState = iota
	deviceDown
	deviceGaveUp
)

func newRecovery(j *journal.Journal) recovery {
	return recovery{
		ladder:  qprecovery.NewLadder(qprecovery.Config{}),
		journal: j,
		worker:  newWorker(),
		watch:   newWatch(),
		faults:  make(chan qprecovery.Fault, maxFaults),
		flushes: make(chan qprecovery.Fault, 1),
	}
}

// deadline is when the ladder, the freeze detector, the pumps or a bad client want
// to be looked at.
func (f *Iface) healDeadline(now time.Time) time.Time {
	at, _ := f.rec.ladder.NextDeadline()
	for _, other := range []time.Time{f.rec.pumps.at, f.rec.badClient.at, f.rec.stale.at} {
		at = sooner(at, other)
	}
	if f.fab.att != nil {
		at = sooner(at, f.rec.watch.deadline(now))
	}
	return at
}

// sooner returns the earlier of two times, of which the zero one is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// onFailure is called by a pump for each work request that failed.
func (f *Iface) onFailure(op hca.WCOpcode) func(ud.Failure) {
	return func(x ud.Failure) {
		class := qprecovery.OfCompletion(x.WC.Status)
		fault := qprecovery.Fault{Gen: uint32(x.WC.ID >> 32), Class: class}
		to := f.rec.flushes
		if class != qprecovery.ClassFlushed { // what is flushed is a consequence of another one
			to = f.rec.faults
			fault.Request = request(op, &x)
		}
		select {
		case to <- fault:
		default: // Run has enough to think about
		}
	}
}

// request describes a work request that failed (R3).
func request(op hca.WCOpcode, x *ud.Failure) *qprecovery.Request {
	return &qprecovery.Request{
		Status: x.WC.Status, Opcode: op, VendorErr: x.WC.VendorErr, WRID: x.WC.ID,
		SGList: []hca.SGE{x.SGE}, DestQPN: x.Dest.QPN,
	}
}

// onEvent is called with each asynchronous event of the queue pair or its CQs.
func (f *Iface) onEvent(gen uint32, ev hca.AsyncEvent) {
	select {
	case f.rec.faults <- qprecovery.Fault{Gen: gen, Class: qprecovery.OfEvent(ev.Type)}:
	default: // Run has enough to think about
	}
}

// fault tells the ladder of a fault, and the log of a request that failed.
func (f *Iface) fault(ev qprecovery.Fault) {
	if r := ev.Request; r != nil {
		f.log.Warn("work request failed", "status", r.Status.String(), "opcode", r.Opcode.String(),
			"bytes", r.SGList[0].Length, "lkey", r.SGList[0].LKey, "to", r.DestQPN.String(), "vendor_err", r.VendorErr)
	}
	f.heal(ev)
}

// heal runs the ladder and carries its actions out. What an action brings about
// is taken once all of them are done.
func (f *Iface) heal(ev qprecovery.Event) {
	r := &f.rec
	r.queue = append(r.queue, ev)
	if r.healing {
		return
	}
	r.healing = true
	for len(r.queue) > 0 {
		ev := r.queue[0]
		r.queue = r.queue[1:]
		f.healOnce(ev)
	}
	r.healing = false
	f.checkCarrier()
}

// checkCarrier starts over where recovery ended without a carrier.
func (f *Iface) checkCarrier() {
	if err := f.rec.carrier; err != nil {
		f.rec.carrier = nil
		f.stop("no carrier")
		f.fail(err)
	}
}

func (f *Iface) healOnce(ev qprecovery.Event) {
	r := &f.rec
	was := r.ladder.State()
	r.actions = r.ladder.Step(time.Now(), ev, r.actions[:0])
	now := r.ladder.State()
	if now != was {
		f.log.Info("recovery", "state", now.String(), "was", was.String(), "reason", r.ladder.Reason().String())
	}
	for _, a := range r.actions {
		f.carryOut(a)
	}
	clear(r.actions)
}

func (f *Iface) carryOut(a qprecovery.Action) {
	switch a := a.(type) {
	case qprecovery.Query:
		f.query(a.Op)
	case qprecovery.Prove:
		f.prove(a.Op)
	case qprecovery.Run:
		f.runRung(a)
	case qprecovery.Release:
		f.release(a.Op)
	case qprecovery.Ready:
		f.ready()
	case qprecovery.RequestReset:
		f.fab.dev.Ask(f.fab.used, a.Reason)
	case qprecovery.HoldTraffic:
		f.hold()
	case qprecovery.ReleaseTraffic:
		f.flow()
	case qprecovery.CarrierDown, qprecovery.CarrierUp:
		f.moveCarrier(a == qprecovery.Action(qprecovery.CarrierUp{}))
	case qprecovery.Entered:
		f.rec.journal.Add(journal.Entered(f.cfg.Name, a))
	case qprecovery.Ended:
		f.rec.journal.Add(journal.Ended(f.cfg.Name, a))
	}
}

// ready ends the use of the session; nothing of the device is held afterwards.
func (f *Iface) ready() {
	_ = f.rec.worker.settle()
	if a := f.fab.att; a != nil {
		_ = f.letGo(a) // whatever hangs, the device is being reset
		f.rec.badClient.release(a.session)
	}
}

// hold leaves the host's frames in the TAP's queue; what comes from the fabric is
// taken still.
func (f *Iface) hold() {
	if a := f.fab.att; a != nil {
		a.tx.halt()
	}
}

func (f *Iface) moveCarrier(on bool) {
	f.log.Info("carrier", "on", on)
	err := f.setCarrier(on)
	if err != nil {
		f.log.Error("cannot change the carrier", "err", err)
	}
	if on {
		f.rec.carrier = err
		return
	}
	f.rec.stale.begin(time.Now())
}

// stop ends a recovery and the use of the device; the ladder is idle afterwards.
// Harmless when it is already.
func (f *Iface) stop(why string) {
	if f.rec.ladder.State() == qprecovery.Idle && f.fab.att == nil {
		return
	}
	f.heal(qprecovery.Stopped{})
	f.accuse(f.rec.worker.settle())
	f.detach(why)
}

// finished takes the result of an operation.
func (f *Iface) finished(r result) {
	f.rec.worker.took(r)
	if r.err != nil {
		f.fab.lastErr = r.err
		f.log.Warn("recovery failed", "state", f.rec.ladder.State().String(), "err", r.err)
	}
	switch {
	case r.err != nil && f.moved(r.of):
		f.accuse(r.err)
		f.stop("the port has changed")
	case r.err != nil && r.fresh && !r.class.OfDevice():
		f.stop("cannot start")
		f.fail(r.err)
	default:
		f.heal(qprecovery.Done{Op: r.op, Class: r.class, State: r.state, Frozen: r.frozen})
	}
	f.reconcile()
}

// moved reports whether the port is not any more what an attachment was made
// for: then a verb that was refused says nothing about the device.
func (f *Iface) moved(a *attachment) bool {
	to, err := f.target(f.fab.dev.View())
	return a != nil && to.session == a.session && (err != nil || !a.plan.SameQP(to.plan))
}

// pumpsEnded looks at both pumps; an error says that ib0 is gone.
func (f *Iface) pumpsEnded() error {
	a := f.fab.att
	return errors.Join(f.pumpEnded(&a.tx), f.pumpEnded(&a.rx))
}

// pumpEnded looks at what a pump ended with. A reason that is nobody's fault has
// it started again, after a pause.
func (f *Iface) pumpEnded(p *pump) error {
	err := p.failure()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, link.ErrGone):
		return err
	}
	f.fab.lastErr = err
	f.log.Warn("pump ended", "err", err)
	f.heal(qprecovery.Fault{Gen: p.gen, Class: device.Classify(p.verb, err)})
	if f.rec.ladder.State() == qprecovery.Healthy && !p.running {
		f.rec.pumps.fail(time.Now())
	}
	return nil
}

// revive starts the pumps that ended, when that is due.
func (f *Iface) revive(now time.Time) {
	a := f.fab.att
	if !f.rec.pumps.due(now) || a == nil || f.rec.ladder.State() != qprecovery.Healthy {
		return
	}
	for _, p := range []*pump{&a.rx, &a.tx} {
		if !p.running {
			p.start(a.gen)
		}
	}
	f.rec.pumps.succeed(now)
}

// followDevice tells the ladder what became of the device. It returns the view
// that the ladder knows of: a later one is not to be acted upon before that.
func (f *Iface) followDevice() device.View {
	v, r := f.fab.dev.View(), &f.rec
	a := f.fab.att
	switch {
	case r.told == deviceUp && (v.Session == nil || a != nil && a.session != v.Session):
		r.told = deviceDown
		f.heal(qprecovery.DeviceDown{})
	case r.told != deviceUp && v.Session != nil && a == nil && r.worker.busy == 0:
		r.told = deviceUp
		f.deviceBack(v)
	case r.told == deviceDown && v.GaveUp:
		r.told = deviceGaveUp
		f.heal(qprecovery.DeviceGaveUp{})
	default:
		return v
	}
	return f.followDevice()
}

// deviceBack tells that the device is there. A port that cannot be used yet is no
// matter of recovery.
func (f *Iface) deviceBack(v device.View) {
	if _, err := f.target(v); err != nil {
		f.stop(err.Error())
	}
	f.heal(qprecovery.DeviceUp{})
}

// ErrNothing says that there is nothing to be reset.
var ErrNothing = errors.New("interface holds no queue pair now")

// ErrUnderWay says that the recovery under way already does what was ordered, or more.
var ErrUnderWay = errors.New("a recovery of the interface is already under way; 'ipoibd events' shows how it ends")

// Reset runs a rung by the operator's word: RungResetQP or RungRebuildCQ. It
// returns once the rung is taken up. Any goroutine may call it. Errors:
// ErrNothing, ErrUnderWay, that of ctx, why the interface has ended.
func (f *Iface) Reset(ctx context.Context, rung qprecovery.Rung) error {
	out := make(chan error, 1)
	select {
	case f.queries <- func() { out <- f.order(rung) }:
		return <-out
	case <-f.done:
		return cmp.Or(f.end, ErrNothing)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *Iface) order(rung qprecovery.Rung) error {
	if f.fab.att == nil {
		return ErrNothing
	}
	order := qprecovery.Order{Rung: rung}
	taken := f.rec.ladder.Takes(order)
	f.heal(order)
	if !taken {
		return ErrUnderWay
	}
	return nil
}
