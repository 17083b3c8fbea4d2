package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

const (
	// verbTimeout is how long a verb may take: one that is stuck is found within a
	// second.
	verbTimeout = 800 * time.Millisecond
	// retryStart is how long the first opening waits for its second try; each
	// further wait is twice as long, up to retryStartMost.
	retryStart     = time.Second
	retryStartMost = 8 * time.Second
)

// starting is what there is of a device that was not open yet.
type starting struct {
	cancel    context.CancelFunc // ends the try under way; nil: there is none
	retry     *time.Timer        // for the next try
	pause     time.Duration      // before that; 0: there was none yet
	suspended bool               // it is not tried
}

// first is the first opening, as the tries bring it.
type first struct {
	shared  *resetlock.Coordinator
	session *Session
	ports   []hca.PortAttr
}

// start opens the device for the first time, again and again until that
// succeeds; false when ctx ended before.
func (o *owner) start() bool {
	o.starting.retry = time.NewTimer(0)
	defer o.starting.retry.Stop()
	if o.cfg.List != nil {
		o.starting.retry.Stop() // the first list is waited for
		o.lists = o.cfg.List.Watch(o.ctx)
	}
	for o.ladder == nil && o.ctx.Err() == nil {
		o.awaitStart()
		o.answerSuspends()
	}
	return o.ladder != nil
}

func (o *owner) awaitStart() {
	select {
	case <-o.ctx.Done():
	case f := <-o.calls:
		f(o)
	case o.present = <-o.lists:
		o.try()
	case <-o.starting.retry.C:
		o.try()
	}
}

// try begins a try, unless one is under way or there shall be none.
func (o *owner) try() {
	if o.starting.cancel != nil || o.starting.suspended {
		return
	}
	var ctx context.Context
	ctx, o.starting.cancel = context.WithCancel(o.ctx)
	present := o.present
	o.work.Go(func() {
		f, err := o.openFirst(ctx, present)
		if !o.tell(func(o *owner) { o.tried(ctx, f, err) }) && err == nil {
			o.closeHCA(f.session)
			_ = f.shared.Close() // it has nothing to fail with
		}
	})
}

// openFirst takes the locks by which processes share the device, then opens it. Their
// name is the device's identity, so it has to be in the list.
func (d *Device) openFirst(ctx context.Context, present []qprecovery.Identity) (f first, err error) {
	conf := resetlock.Config{
		Device: d.cfg.Name, Name: d.cfg.Users, Dir: d.cfg.Coordinator, Exclusive: d.cfg.Means != "", Grace: d.cfg.Grace,
		Reset: d.reset, Holders: d.cfg.Holders, Waiting: d.waiting, Log: d.cfg.Log,
	}
	if conf.Dir != "" {
		if len(present) == 0 {
			return first{}, fmt.Errorf("device %s: %w", d.cfg.Name, hca.ErrNoDevice)
		}
		id := present[0]
		conf.Identity = reset.Device{NodeGUID: id.NodeGUID, PCIAddr: id.PCIAddr, Parent: id.Parent, Name: id.Name, Means: d.cfg.Means}
	}
	f.shared, err = resetlock.Join(ctx, conf)
	if err != nil {
		return first{}, err
	}
	f.session, f.ports, err = d.openSession(ctx, 1)
	if err != nil {
		return first{}, errors.Join(err, f.shared.Close())
	}
	return f, nil
}

// tried takes the result of a try, which a suspension may have ended; what it
// brought all the same is let go as any other.
func (o *owner) tried(ctx context.Context, f first, err error) {
	ended := ctx.Err() != nil
	o.starting.cancel()
	o.starting.cancel = nil
	switch {
	case err == nil:
		o.begin(f)
	case o.starting.suspended:
		o.publish(View{Err: ErrSuspended}) // a registration that waited may have shown that
	case ended:
		o.try() // resumed meanwhile
	default:
		o.notOpen(err)
		o.starting.pause = min(max(2*o.starting.pause, retryStart), retryStartMost)
		o.starting.retry.Reset(o.starting.pause)
	}
}

// begin starts the ladder of a device that is open.
func (o *owner) begin(f first) {
	o.shared.Store(f.shared)
	o.ladder = qprecovery.NewDeviceLadder(time.Now(), qprecovery.DeviceConfig{
		Identity: o.identify(f.session, f.ports), GiveUpAfter: o.cfg.GiveUpAfter, Grace: o.cfg.Grace, AllowForeign: o.cfg.AllowForeign,
	})
	o.take(f.session, f.ports)
	o.show()
	if o.starting.suspended {
		o.step(qprecovery.Suspend{})
	}
}

// suspendStart ends the tries, and resumeStart goes on with them.
func (o *owner) suspendStart() {
	o.starting.suspended = true
	if o.starting.cancel != nil {
		o.starting.cancel()
	}
	o.status.Store(&Status{Suspended: true})
	o.publish(View{Err: ErrSuspended})
}

func (o *owner) resumeStart() {
	if !o.starting.suspended {
		return
	}
	o.starting.suspended = false
	o.status.Store(&Status{})
	o.publish(View{Err: ErrNotOpen})
	o.try()
}

// waiting shows what the registration waits for.
func (d *Device) waiting(why error) {
	d.publish(View{Err: fmt.Errorf("device %s is shared: %w", d.cfg.Name, why)})
}

// notOpen reports a reason that is new.
func (o *owner) notOpen(err error) {
	if last := o.View().Err; last.Error() != err.Error() {
		o.log.Error("cannot open device; trying again until it opens", "err", err, "at_least_every", retryStartMost)
		o.publish(View{Err: err})
	}
}
