package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/guard"
	"ipoibd/qprecovery"
)

const (
	// verbTimeout is how long a verb may take: one that is stuck is found within a second.
	verbTimeout = 800 * time.Millisecond
	// closePatience is how long to wait for an HCA in error state to close. An HCA in which a call
	// has hung is not waited for: the call returns only when the HCA is reset.
	closePatience = 20 * time.Millisecond
)

var (
	errForeign   = errors.New("a different device was found")
	errAbandoned = errors.New("not released within the grace period")
)

// opening is an opening under way.
type opening struct {
	op     uint64 // 0: there is none
	cancel context.CancelFunc
}

// opened is the result of an opening.
type opened struct {
	session *Session
	ports   []hca.PortAttr
	id      qprecovery.Identity
}

// open begins an opening. The machine requests no other before it has the result.
func (o *owner) open(a qprecovery.Open) {
	if o.locks.err != nil { // the device is not used without the locks
		o.opening = opening{op: a.Op, cancel: func() {}}
		o.do(func() { o.opened(a.Op, opened{}, o.locks.err) })
		return
	}
	ctx, cancel := context.WithCancel(o.ctx)
	o.opening = opening{a.Op, cancel}
	o.work.Go(func() {
		got, err := o.opener.session(ctx, o.ctx, a.Gen, a.Want)
		if err != nil && ctx.Err() != nil {
			err = ctx.Err()
		}
		cancel()
		told := o.tell(func(o *owner) { o.opened(a.Op, got, err) })
		if err != nil {
			return
		}
		if !told {
			got.session.retire()
		}
		o.serve(got.session)
	})
}

// serve reads the events of a session until its use ends, and closes it. Run does not wait for a
// device that does not work longer than closePatience.
func (o *owner) serve(s *Session) {
	o.readEvents(s)
	<-s.use.Done()
	closed := sync.OnceFunc(func() {
		o.tell(func(o *owner) {
			if o.session == s { // else its opening was abandoned
				o.session = nil
				o.step(qprecovery.Closed{Gen: uint32(s.Instance)})
			}
		})
	})
	switch {
	case s.Err() == nil:
	case s.Hung():
		closed()
	default:
		defer time.AfterFunc(closePatience, closed).Stop()
	}
	o.opener.close(s)
	closed()
}

// opener opens and closes sessions. Any goroutine may call its methods.
type opener struct {
	open    Opener
	log     *slog.Logger
	zombies guard.Zombies // of this device, so that an HCA that hangs does not stop the recovery of others
}

// session opens the HCA as a new generation and queries its ports. It closes any device
// other than want again (R22); the zero identity accepts any device. The end of ctx cancels the opening, but
// only the end of running abandons one that hangs.
func (p *opener) session(ctx, running context.Context, gen uint32, want qprecovery.Identity) (opened, error) {
	open := func(context.Context) (hca.Device, error) { return p.open(ctx) }
	dev, err := guard.Open(running, open, guard.Options{VerbTimeout: verbTimeout, Zombies: &p.zombies})
	if err != nil {
		return opened{}, err
	}
	s := newSession(dev, uint64(gen), p.log)
	stop := context.AfterFunc(ctx, func() { s.Fail(ctx.Err()) })
	ports, err := queryPorts(s)
	if !stop() { // the opening was cancelled
		err = cmp.Or(s.Err(), err, ctx.Err())
	}
	if err != nil {
		s.Fail(err) // a failed session can always be closed
		return opened{}, errors.Join(err, s.Close())
	}
	s.subnets.see(ports)
	a := s.Attr() // the list knows the index
	id := qprecovery.Identity{
		NodeGUID: a.NodeGUID, SysImageGUID: a.SysImageGUID,
		PCIAddr: a.PCIAddr, Parent: a.Parent, Name: a.Name,
	}
	if len(ports) > 0 {
		id.PortGUID = ports[0].GUID
	}
	if want != (qprecovery.Identity{}) && !want.Same(id) {
		p.close(s)
		return opened{}, fmt.Errorf("%w: node GUID %s", errForeign, id.NodeGUID)
	}
	return opened{session: s, ports: ports, id: id}, nil
}

// close closes the context. If that fails, because the context is busy or does not
// answer, close closes it in error state, where closing cannot fail.
func (p *opener) close(s *Session) {
	if err := s.Close(); err != nil {
		p.log.Error("cannot close the device; closing it in error state", "err", err)
		s.Fail(err)
		_ = s.Close() // it is in error state
	}
}

// opened handles the result of an opening. A session that has opened although its opening was
// abandoned is closed.
func (o *owner) opened(op uint64, got opened, err error) {
	if op != o.opening.op {
		if err == nil {
			got.session.retire()
		}
		return
	}
	o.opening = opening{}
	last := o.cause
	if o.cause = err; errors.Is(err, context.Canceled) {
		o.cause = nil
	}
	if o.cause != nil && fmt.Sprint(last) != o.cause.Error() {
		o.log.Error("cannot open device; retrying", "err", err)
	}
	if err == nil {
		attr := got.session.Attr()
		o.session, o.attr = got.session, &attr
		o.opens++
		o.note(o.ports.set(got.ports, o.cfg.Underlay)...)
		o.logOpen()
	}
	o.step(qprecovery.Opened{Op: op, Class: qprecovery.OfVerbError(qprecovery.VerbOpenDevice, err), Identity: got.id})
}

func (o *owner) logOpen() {
	a, gids := o.session.Attr(), []string{}
	for _, port := range o.ports.attrs {
		for _, gid := range port.GIDs {
			gids = append(gids, gid.GID.String())
		}
	}
	log := o.log.With("hca", a.Name)
	if o.cfg.Underlay != "" {
		log = log.With("underlay", o.cfg.Underlay)
	}
	log.Info("device open", "node_guid", a.NodeGUID, "gids", strings.Join(gids, ","), "instance", o.session.Instance)
}

// close ends the use of the session. It is called again if a device that does not work has
// not been released.
func (o *owner) close(a qprecovery.Close) {
	if o.session == nil {
		return
	}
	level := slog.LevelInfo
	if a.Fail {
		level = slog.LevelWarn
		o.session.Fail(fmt.Errorf("%w: %s", hca.ErrIO, a.Reason))
	}
	o.log.Log(o.ctx, level, "releasing the device", "reason", a.Reason.String())
	o.session.retire()
}

// abandon closes the session without the users that have not released it: their handles
// become zombies. It also stops waiting for an opening.
func (o *owner) abandon() {
	if o.opening.op != 0 {
		o.note("opening the device takes too long; abandoning this attempt")
		o.opening.cancel()
		o.opening = opening{}
		return
	}
	s := o.session
	if s == nil {
		return
	}
	text := "closing the device takes too long; continuing without waiting"
	if users := s.usedBy(); len(users) > 0 {
		text = fmt.Sprintf("the device was not released in time by %s; continuing without waiting",
			strings.Join(users, ", "))
	}
	o.note(text)
	s.abandon()
}
