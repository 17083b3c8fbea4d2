package device

import (
	"context"
	"errors"
	"fmt"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

// opening is the ladder's Open.
type opening struct {
	next qprecovery.Open // to be begun; Op 0: none
	op   uint64          // of the last Open
	busy bool            // an Opener runs, or what it brought too late is closed
}

var errForeign = errors.New("it is another device")

// openSession opens the HCA as a generation and asks for its ports.
func (d *Device) openSession(ctx context.Context, gen uint32) (*Session, []hca.PortAttr, error) {
	if err := d.zombies.Room(); err != nil {
		return nil, nil, err
	}
	dev, err := d.cfg.Open(ctx)
	if err != nil {
		return nil, nil, err
	}
	s := newSession(guard.Wrap(dev, guard.Options{VerbTimeout: verbTimeout, Zombies: &d.zombies}), uint64(gen))
	ports, err := queryPorts(s)
	if err != nil {
		s.Fail(err) // a failed session can always be closed
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, ports, nil
}

// wanted reports whether the ladder still waits for the Open op.
func (o *owner) wanted(op uint64) bool {
	s := o.ladder.State()
	return op == o.opening.op && (s == qprecovery.DeviceOpening || s == qprecovery.DeviceRetrying)
}

// beginOpening does what the ladder asked for once nothing stands in its way: a
// reset under way, or what was open before.
func (o *owner) beginOpening() {
	p := &o.opening
	if p.next.Op == 0 || p.busy || o.pending.id != 0 || o.leaving != nil {
		return
	}
	a := p.next
	p.next = qprecovery.Open{}
	if !o.wanted(a.Op) {
		return
	}
	p.busy = true
	o.work.Go(func() {
		s, ports, err := o.openSession(o.ctx, a.Gen)
		if !o.tell(func(o *owner) { o.opened(a.Op, s, ports, err) }) && err == nil {
			o.closeHCA(s)
		}
	})
}

// opened takes the result of an Open. What comes too late is closed, and so is
// another device.
func (o *owner) opened(op uint64, s *Session, ports []hca.PortAttr, err error) {
	o.opening.busy = false
	if err == nil {
		err = o.checkIdentity(s, ports)
	}
	switch {
	case s != nil && (err != nil || !o.wanted(op)):
		o.discard(s)
	case err == nil:
		o.take(s, ports)
	}
	if o.wanted(op) {
		o.cause = err
		o.step(qprecovery.Done{Op: op, Class: Classify(qprecovery.VerbOpenDevice, err)})
	}
}

// checkIdentity guards R22 where no list told before.
func (o *owner) checkIdentity(s *Session, ports []hca.PortAttr) error {
	id := o.identify(s, ports)
	if o.cfg.AllowForeign || o.ladder.Identity().Same(id) {
		return nil
	}
	return fmt.Errorf("%w: node GUID %s", errForeign, id.NodeGUID)
}

func (o *owner) discard(s *Session) {
	o.opening.busy = true
	o.work.Go(func() {
		o.closeHCA(s)
		o.tell(func(o *owner) { o.opening.busy = false })
	})
}

// take makes a session the one that is used.
func (o *owner) take(s *Session, ports []hca.PortAttr) {
	o.session, o.ports, o.clean = s, ports, false
	o.opens.Add(1)
	a := s.Attr()
	o.log.Info("device open", "name", a.Name, "node_guid", a.NodeGUID, "instance", s.Instance)
	o.follow(s)
}
