package device

import (
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/coordinator"
	"ipoibd/qprecovery"
)

const (
	// verbTimeout is how long a verb may take: one that is stuck is found within a
	// second.
	verbTimeout = 800 * time.Millisecond
	// retryStart is how long the first opening waits for its next try.
	retryStart = time.Second
)

// start opens the device for the first time, again and again until that
// succeeds; false when ctx ended before.
func (o *owner) start() bool {
	if o.cfg.List != nil {
		o.lists = o.cfg.List.Watch(o.ctx)
		o.awaitList(nil)
	}
	for o.ctx.Err() == nil {
		err := o.startOnce()
		if err == nil {
			return true
		}
		if o.ctx.Err() == nil {
			o.notOpen(err)
			o.awaitList(time.After(retryStart))
		}
	}
	return false
}

// awaitList waits for a new list, at most until the alarm.
func (o *owner) awaitList(alarm <-chan time.Time) {
	select {
	case <-o.ctx.Done():
	case o.present = <-o.lists:
	case <-alarm:
	}
}

// startOnce registers with those who share the device, then opens it.
func (o *owner) startOnce() error {
	c, err := coordinator.Join(o.ctx, coordinator.Config{
		Device: o.cfg.Name, Name: o.cfg.Users, Path: o.cfg.Coordinator, Grace: o.cfg.Grace,
		Reset: o.reset, Waiting: o.waiting, Log: o.cfg.Log,
	})
	if err != nil {
		return err
	}
	s, ports, err := o.openSession(o.ctx, 1)
	if err != nil {
		return errors.Join(err, c.Close())
	}
	o.shared.Store(c)
	o.ladder = qprecovery.NewDeviceLadder(time.Now(), qprecovery.DeviceConfig{
		Identity: o.identify(s, ports), GiveUpAfter: o.cfg.GiveUpAfter, Grace: o.cfg.Grace, AllowForeign: o.cfg.AllowForeign,
	})
	o.take(s, ports)
	o.show()
	return nil
}

// waiting shows what the registration waits for. Run waits for it, too.
func (d *Device) waiting(why error) {
	d.publish(View{Err: fmt.Errorf("waiting for those who share device %s: %w", d.cfg.Name, why)})
}

// notOpen tells a new reason.
func (o *owner) notOpen(err error) {
	if last := o.View().Err; last.Error() == err.Error() {
		return
	}
	o.log.Error("cannot open device; trying again", "err", err, "every", retryStart)
	o.publish(View{Err: err})
}
