package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"ipoibd/cmd/ipoibd/internal/resetlock"
	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
	"ipoibd/qprecovery/reset"
)

// verbTimeout is how long a verb may take: one that is stuck is found within a second.
const verbTimeout = 800 * time.Millisecond

var errForeign = errors.New("it is another device")

// opened is what an opening brought.
type opened struct {
	shared  *sharer // where it was the first one; nil: no other
	session *Session
	ports   []hca.PortAttr
	id      qprecovery.Identity
}

// open begins an opening. There is one at a time: the machine does not ask for another
// one before this is answered.
func (o *owner) open(a qprecovery.Open) {
	ctx, cancel := context.WithCancel(o.ctx)
	o.cancel = cancel
	want, known := o.machine.Identity()
	if o.cfg.AllowForeign || !known {
		want = qprecovery.Identity{}
	}
	listed := o.machine.Devices()
	o.work.Go(func() {
		got, err := o.joinAndOpen(ctx, a.Gen, want, listed)
		if o.tell(func(o *owner) { o.opened(a.Op, ctx.Err() != nil, got, err); cancel() }) {
			return
		}
		cancel()
		if err == nil {
			o.closeHCA(got.session)
		}
		if got.shared != nil {
			_ = (*got.shared).Close() // it has nothing to fail with
		}
	})
}

// joinAndOpen takes the locks by which processes share the device, unless it did before,
// and opens the device. The identity of the device names the locks, so the device has to
// be in the list.
func (d *Device) joinAndOpen(ctx context.Context, gen uint32, want qprecovery.Identity, listed []qprecovery.Identity) (got opened, err error) {
	if d.shared.Load() != nil {
		return d.openSession(ctx, gen, want)
	}
	conf := resetlock.Config{
		Device: d.cfg.Name, Name: d.cfg.Users, Dir: d.cfg.Coordinator, Exclusive: d.cfg.Means != "", Grace: d.cfg.Grace,
		Reset: d.reset, Holders: d.cfg.Holders, Waiting: d.waiting, Log: d.cfg.Log,
	}
	if conf.Dir != "" {
		if len(listed) == 0 {
			return opened{}, fmt.Errorf("device %s: %w", d.cfg.Name, hca.ErrNoDevice)
		}
		id := listed[0]
		conf.Identity = reset.Device{NodeGUID: id.NodeGUID, PCIAddr: id.PCIAddr, Parent: id.Parent, Name: id.Name, Means: d.cfg.Means}
	}
	shared, err := d.join(ctx, conf)
	if err != nil {
		return opened{}, err
	}
	if got, err = d.openSession(ctx, gen, want); err != nil {
		return opened{}, errors.Join(err, shared.Close())
	}
	got.shared = &shared
	return got, nil
}

// openSession opens the HCA as a generation and asks for its ports. Another device than
// want is closed again (R22); the zero identity is any.
func (d *Device) openSession(ctx context.Context, gen uint32, want qprecovery.Identity) (opened, error) {
	if err := d.zombies.Room(); err != nil {
		return opened{}, err
	}
	dev, err := d.cfg.Open(ctx)
	if err != nil {
		return opened{}, err
	}
	s := newSession(guard.Wrap(dev, guard.Options{VerbTimeout: verbTimeout, Zombies: &d.zombies}), uint64(gen))
	ports, err := queryPorts(s)
	if err != nil {
		s.Fail(err) // a failed session can always be closed
		return opened{}, errors.Join(err, s.Close())
	}
	id := identify(s, ports)
	if want != (qprecovery.Identity{}) && !want.Same(id) {
		d.closeHCA(s)
		return opened{}, fmt.Errorf("%w: node GUID %s", errForeign, id.NodeGUID)
	}
	return opened{session: s, ports: ports, id: id}, nil
}

// identify names an HCA that is open. The list knows its index.
func identify(s *Session, ports []hca.PortAttr) qprecovery.Identity {
	a := s.Attr()
	id := qprecovery.Identity{NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID, PCIAddr: a.PCIAddr, Parent: a.Parent, Name: a.Name}
	if len(ports) > 0 {
		id.PortGUID = ports[0].GUID
	}
	return id
}

// opened takes the result of an opening.
func (o *owner) opened(op uint64, cancelled bool, got opened, err error) {
	o.cancel = nil
	o.cause = err
	if err == nil {
		o.take(got)
	}
	o.step(qprecovery.Opened{Op: op, Class: Classify(qprecovery.VerbOpenDevice, err), Identity: got.id})
	if err != nil && o.machine.State() == qprecovery.DeviceStarting && !cancelled {
		o.notOpen(err)
	}
}

// take makes a session the one that is open.
func (o *owner) take(got opened) {
	if got.shared != nil {
		o.shared.Store(got.shared)
	}
	o.session, o.ports = got.session, got.ports
	o.opens.Add(1)
	a := o.session.Attr()
	o.log.Info("device open", "name", a.Name, "node_guid", a.NodeGUID, "instance", o.session.Instance)
	o.startEvents(o.session)
}

// waiting shows what the joining waits for.
func (d *Device) waiting(why error) {
	d.publish(View{Err: fmt.Errorf("device %s is shared: %w", d.cfg.Name, why)})
}

// notOpen reports a reason that is new.
func (o *owner) notOpen(err error) {
	if last := o.View().Err; last.Error() != err.Error() {
		o.log.Error("cannot open device; trying again until it opens", "err", err, "at_least_every", qprecovery.StartPauseMost)
		o.publish(View{Err: err})
	}
}
