package iface

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
)

// attachment is the interface's use of one session: the endpoint and the pumps.
// A nil one has channels that never deliver.
type attachment struct {
	session    *device.Session
	plan       port.Plan
	ep         *device.Endpoint
	generation uint32

	stop   atomic.Bool
	pumps  sync.WaitGroup
	failed chan error // one place for each pump
}

func (a *attachment) failures() <-chan error {
	if a == nil {
		return nil
	}
	return a.failed
}

func (a *attachment) ahResults() <-chan device.AHResult {
	if a == nil {
		return nil
	}
	return a.ep.AHs.Results()
}

// address is the interface's link-layer address.
func (a *attachment) address() ipoib.Addr { return ipoib.NewAddr(a.ep.QP.Num(), a.plan.GID) }

// attached describes it to the peer table.
func (a *attachment) attached() neigh.Attached {
	return neigh.Attached{
		Self: a.address(), Broadcast: a.ep.Broadcast(), PKey: a.plan.PKey, QKey: a.plan.Broadcast.QKey, MTU: a.plan.MTU(),
	}
}

// attach opens an endpoint and starts the pumps; then the carrier comes on.
func (f *Iface) attach(s *device.Session, plan port.Plan) error {
	if !s.Acquire() {
		return hca.ErrClosed
	}
	a := &attachment{session: s, plan: plan, generation: f.fab.generation + 1, failed: make(chan error, 2)}
	if err := f.openEndpoint(a); err != nil {
		s.Release()
		return err
	}
	f.fab.generation, f.fab.att = a.generation, a
	f.step(a.attached())
	f.hostNeighbours()
	a.start(f.path)
	if err := f.setCarrier(true); err != nil {
		f.detach("no carrier")
		return err
	}
	f.log.Info("up", "qpn", a.ep.QP.Num().String(), "gid", plan.GID.String(), "mtu", f.host.now.MTU, "largest_mtu", plan.MTU())
	return nil
}

// setCarrier does not wait for netlink to tell of it.
func (f *Iface) setCarrier(on bool) error {
	err := f.host.tap.SetCarrier(on)
	if err == nil {
		f.host.now.Carrier = on && f.host.now.Up
	}
	return err
}

func (f *Iface) openEndpoint(a *attachment) (err error) {
	a.ep, err = device.OpenEndpoint(a.session, device.EndpointSpec{
		Plan: a.plan, SendWRs: f.cfg.SendWRs, RecvWRs: f.cfg.RecvWRs,
		SendStride: ud.TxStride(maxMTU), RecvStride: ud.RxStride(maxMTU + ipoib.HeaderLen),
	}, a.generation)
	if err != nil {
		return err
	}
	if err := f.attachPath(a); err != nil {
		f.path.tx.Detach()
		f.path.rx.Detach()
		return errors.Join(err, a.ep.Close())
	}
	return nil
}

func (f *Iface) attachPath(a *attachment) error {
	if err := f.path.tx.Attach(a.ep.QP, a.ep.SendCQ, a.ep.SendMR, a.generation); err != nil {
		return err
	}
	return f.path.rx.Attach(a.ep.QP, a.ep.RecvCQ, a.ep.RecvMR, a.generation)
}

// start runs the pumps until stop.
func (a *attachment) start(p dataPath) {
	a.pumps.Go(func() { a.pump(p.tx.Pump) })
	a.pumps.Go(func() { a.pump(func() error { return p.rx.Pump(time.Time{}) }) })
}

func (a *attachment) pump(once func() error) {
	for !a.stop.Load() {
		if err := once(); err != nil {
			a.failed <- err
			return
		}
	}
}

// halt ends the pumps and waits for them.
func (a *attachment) halt(p dataPath) {
	a.stop.Store(true)
	p.tx.Wake()
	a.ep.SendCQ.Wake()
	a.ep.RecvCQ.Wake()
	a.pumps.Wait()
}

// detach takes the carrier down and closes the endpoint. Harmless when there is
// none.
func (f *Iface) detach(why string) {
	a := f.fab.att
	if a == nil {
		return
	}
	f.log.Info("closing queue pair", "qpn", a.ep.QP.Num().String(), "reason", why)
	if err := f.setCarrier(false); err != nil && f.host.now.Present {
		f.log.Error("cannot take the carrier down", "err", err)
	}
	a.halt(f.path)
	f.step(neigh.Detached{})
	if err := a.ep.Close(); err != nil {
		f.log.Error("close queue pair", "err", err)
	}
	lost := f.path.tx.Detach()
	f.path.rx.Detach()
	f.fab.att = nil
	f.nbrs.forgetHandles()
	a.session.Release()
	f.log.Debug("queue pair closed", "sends_dropped", lost)
}
