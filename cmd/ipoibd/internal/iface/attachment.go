package iface

import (
	"errors"
	"time"

	"ipoibd/cmd/ipoibd/internal/device"
	"ipoibd/hca"
	"ipoibd/neigh"
	"ipoibd/qprecovery"
	"ipoibd/ud"
	"ipoibd/ud/ipoib"
	"ipoibd/ud/port"
)

// attachment is the interface's use of one session: the endpoint and the pumps.
// A nil one has channels that never deliver. While an operation is under way
// the endpoint is the worker's, but for its address handles.
type attachment struct {
	session *device.Session
	plan    port.Plan
	ep      *device.Endpoint
	gen     uint32  // of the queue pair
	qpn     hca.QPN // of the queue pair last attached

	tx, rx pump
	ended  chan struct{} // has a value after a pump ended with an error
	closed bool          // the endpoint was closed
}

func (f *Iface) newAttachment(s *device.Session, plan port.Plan, gen uint32) *attachment {
	a := &attachment{session: s, plan: plan, gen: gen, ended: make(chan struct{}, 1)}
	a.makePumps(&f.path)
	f.fab.used = s.Instance
	return a
}

func (a *attachment) pumpsEnded() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.ended
}

func (a *attachment) ahResults() <-chan device.AHResult {
	if a == nil || a.closed {
		return nil
	}
	return a.ep.AHs.Results()
}

// address is the interface's link-layer address.
func (a *attachment) address() ipoib.Addr { return ipoib.NewAddr(a.qpn, a.plan.GID) }

// attached describes it to the peer table.
func (a *attachment) attached() neigh.Attached {
	return neigh.Attached{
		Self: a.address(), Broadcast: a.ep.Broadcast(), PKey: a.plan.PKey, QKey: a.plan.Broadcast().QKey, MTU: a.plan.MTU(),
	}
}

// open opens the endpoint and attaches the data path to it. The session is held
// meanwhile. On an error nothing is left behind.
func (f *Iface) open(a *attachment) (err error) {
	a.ep, err = device.OpenEndpoint(a.session, device.EndpointSpec{
		Plan: a.plan, SendWRs: f.cfg.SendWRs, RecvWRs: f.cfg.RecvWRs,
		SendStride: ud.TxStride(ipoib.MaxMTU), RecvStride: ud.RxStride(hca.MaxMTU),
		OnEvent: f.onEvent,
	}, a.gen)
	if err != nil {
		return err
	}
	if err := f.attachPath(a.ep, a.gen); err != nil {
		return errors.Join(err, f.close(a))
	}
	return nil
}

// attachPath gives the data path the queue pair, or leaves it without.
func (f *Iface) attachPath(ep *device.Endpoint, gen uint32) error {
	err := f.path.tx.Attach(ep.QP, ep.SendCQ, ep.SendMR, gen)
	if err == nil {
		err = f.path.rx.Attach(ep.QP, ep.RecvCQ, ep.RecvMR, gen)
	}
	if err != nil {
		f.path.detach()
	}
	return err
}

// detach takes back what is posted, counted as dropped.
func (p *dataPath) detach() {
	p.tx.Detach()
	p.rx.Detach()
}

// close closes the endpoint, from which the pumps were halted.
func (f *Iface) close(a *attachment) error {
	err := a.ep.Close()
	f.path.detach()
	return err
}

// adopt makes an attachment that is open the interface's own.
func (f *Iface) adopt(a *attachment) {
	f.fab.att, f.fab.err = a, nil
	f.renew(a, a.ep.QP.Num())
	f.nbrs.strays.follow(a.session, time.Now())
	f.hostNeighbours()
}

// renew tells the peers of the queue pair that an attachment has now.
func (f *Iface) renew(a *attachment, qpn hca.QPN) {
	a.qpn = qpn
	f.step(a.attached())
}

// attach opens an endpoint and starts the pumps; then the carrier comes on.
func (f *Iface) attach(s *device.Session, plan port.Plan) error {
	if !s.Acquire(f.cfg.Name) {
		return hca.ErrClosed
	}
	a := f.newAttachment(s, plan, f.rec.ladder.NextGen())
	if err := f.open(a); err != nil {
		s.Release(f.cfg.Name)
		return err
	}
	f.adopt(a)
	f.heal(qprecovery.Attached{Gen: a.gen})
	f.flow()
	if err := f.setCarrier(true); err != nil {
		f.stop("no carrier")
		return err
	}
	f.log.Info("up", "qpn", a.qpn.String(), "gid", plan.GID.String(), "mtu", f.host.now.MTU, "largest_mtu", plan.MTU())
	return nil
}

// flow lets frames go both ways.
func (f *Iface) flow() {
	a := f.fab.att
	if a == nil {
		return
	}
	f.rec.stale.end()
	for _, p := range []*pump{&a.rx, &a.tx} {
		p.halt()
		p.start(a.gen)
	}
	f.rec.pumps.succeed(time.Now())
	f.rec.watch.restart()
}

// halt stops both pumps.
func (a *attachment) halt() {
	a.tx.halt()
	a.rx.halt()
}

// retire stops an attachment's use: no frames, no peers, no handles to be closed
// one by one.
func (f *Iface) retire(a *attachment) {
	a.halt()
	f.step(neigh.Detached{})
	f.nbrs.forgetHandles()
	f.nbrs.strays.stop()
}

// detach takes the carrier down and lets go of the device. Nothing is under way.
// Harmless when there is no attachment.
func (f *Iface) detach(why string) {
	if err := f.setCarrier(false); err != nil && f.host.now.Present {
		f.log.Error("cannot take the carrier down", "err", err)
	}
	a := f.fab.att
	if a == nil {
		return
	}
	f.log.Info("closing queue pair", "qpn", a.qpn.String(), "reason", why)
	f.accuse(f.letGo(a))
	a.session.Release(f.cfg.Name)
	f.rec.stale.begin(time.Now())
}

// letGo closes what an attachment holds of the device, as far as that was not
// done; the session is its caller's to release.
func (f *Iface) letGo(a *attachment) error {
	f.fab.att = nil
	if a.closed {
		return nil
	}
	f.retire(a)
	err := f.close(a)
	if err != nil {
		f.log.Error("close queue pair", "err", err)
	}
	return err
}

// accuse has the device reset where a verb hangs that no rung called (R8).
func (f *Iface) accuse(err error) {
	if device.Classify(qprecovery.VerbQueryQP, err) == qprecovery.ClassStuck {
		f.fab.dev.Ask(f.fab.used, qprecovery.ReasonVerbStuck)
	}
}
