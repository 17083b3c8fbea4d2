package device

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"ipoibd/cmd/ipoibd/internal/port"
	"ipoibd/hca"
)

// EndpointSpec is what an interface needs of a session.
type EndpointSpec struct {
	Plan       port.Plan
	SendWRs    int
	RecvWRs    int
	SendStride int // bytes of one send slot
	RecvStride int // bytes of one receive slot
}

// Endpoint is a queue pair with everything that it needs. One goroutine owns
// it; its address handles are made by workers.
type Endpoint struct {
	Spec           EndpointSpec
	QP             hca.QP
	SendCQ, RecvCQ hca.CQ
	SendMR, RecvMR hca.MR
	Broadcast      hca.UDDest
	AHs            *AHWorkers

	closers []func() error // in order of creation
}

// OpenEndpoint builds an endpoint; the caller keeps the session meanwhile and
// until Close. On an error nothing is left behind. It blocks as verbs do.
func OpenEndpoint(s *Session, spec EndpointSpec) (*Endpoint, error) {
	e := &Endpoint{Spec: spec}
	if err := e.build(s); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) build(s *Session) error {
	pd, err := s.AllocPD()
	if err != nil {
		return err
	}
	e.onClose(pd.Close)
	for _, step := range []func(hca.Device, hca.PD) error{e.allocMRs, e.createCQs, e.createQP, e.activate, e.join} {
		if err := step(s.Device, pd); err != nil {
			return err
		}
	}
	return nil
}

func (e *Endpoint) onClose(f func() error) { e.closers = append(e.closers, f) }

func (e *Endpoint) allocMRs(_ hca.Device, pd hca.PD) (err error) {
	if e.SendMR, err = pd.AllocMR(e.Spec.SendWRs*e.Spec.SendStride, 0); err != nil {
		return err
	}
	e.onClose(e.SendMR.Close)
	if e.RecvMR, err = pd.AllocMR(e.Spec.RecvWRs*e.Spec.RecvStride, hca.AccessLocalWrite); err != nil {
		return err
	}
	e.onClose(e.RecvMR.Close)
	return nil
}

// createCQs gives each queue its own CQ, one entry per request, so that none
// can overrun.
func (e *Endpoint) createCQs(dev hca.Device, _ hca.PD) (err error) {
	if e.SendCQ, err = dev.CreateCQ(hca.CQSpec{Entries: e.Spec.SendWRs}); err != nil {
		return err
	}
	e.onClose(e.SendCQ.Close)
	if e.RecvCQ, err = dev.CreateCQ(hca.CQSpec{Entries: e.Spec.RecvWRs}); err != nil {
		return err
	}
	e.onClose(e.RecvCQ.Close)
	return nil
}

func (e *Endpoint) createQP(_ hca.Device, pd hca.PD) (err error) {
	spec := hca.QPSpec{SendWRs: e.Spec.SendWRs, RecvWRs: e.Spec.RecvWRs, SendSGEs: 2, RecvSGEs: 1}
	if e.QP, err = pd.CreateQP(spec, e.SendCQ, e.RecvCQ); err != nil {
		return err
	}
	e.onClose(e.QP.Close)
	return nil
}

// activate walks the queue pair to RTS.
func (e *Endpoint) activate(hca.Device, hca.PD) error {
	p := e.Spec.Plan
	for _, step := range []struct {
		attr hca.QPAttr
		mask hca.QPAttrMask
	}{
		{hca.QPAttr{State: hca.QPInit, PKeyIndex: p.PKeyIndex, Port: p.Port, QKey: p.Broadcast.QKey}, hca.AttrState | hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey},
		{hca.QPAttr{State: hca.QPRTR}, hca.AttrState},
		{hca.QPAttr{State: hca.QPRTS, SQPSN: rand.Uint32() & 0xffffff}, hca.AttrState | hca.AttrSQPSN},
	} {
		if err := e.QP.Modify(step.attr, step.mask); err != nil {
			return fmt.Errorf("bring queue pair to %s: %w", step.attr.State, err)
		}
	}
	return nil
}

// join attaches to the broadcast group and makes its address handle.
func (e *Endpoint) join(_ hca.Device, pd hca.PD) error {
	g := e.Spec.Plan.Broadcast
	if err := e.QP.AttachMulticast(g.Attach, g.MLID); err != nil {
		return fmt.Errorf("join broadcast group: %w", err)
	}
	e.onClose(func() error { return e.QP.DetachMulticast(g.Attach, g.MLID) })
	ah, err := pd.CreateAH(e.Spec.Plan.GroupAH(g))
	if err != nil {
		return fmt.Errorf("make address handle of the broadcast group: %w", err)
	}
	e.onClose(ah.Close)
	e.Broadcast = hca.UDDest{AH: ah, QPN: hca.QPNMulticast, QKey: g.QKey}
	e.AHs = newAHWorkers(pd)
	e.onClose(e.AHs.Close)
	e.onClose(e.quiesce)
	return nil
}

// quiesce drops what is posted, so that nothing uses the handles any more. A
// device that is gone cannot be told, and uses nothing.
func (e *Endpoint) quiesce() error {
	err := e.QP.Modify(hca.QPAttr{State: hca.QPReset}, hca.AttrState)
	if errors.Is(err, hca.ErrIO) {
		return nil
	}
	return err
}

// Health asks whether the queue pair works: both CQs in order, and the state
// RTS. It may block.
func (e *Endpoint) Health() error {
	for _, cq := range []hca.CQ{e.SendCQ, e.RecvCQ} {
		if _, err := cq.Poll(nil); err != nil {
			return err
		}
	}
	attr, err := e.QP.Query()
	if err == nil && attr.State != hca.QPRTS {
		err = fmt.Errorf("%w: it is in %s", ErrNotRTS, attr.State)
	}
	return err
}

// ErrNotRTS says that an error took the queue pair out of RTS.
var ErrNotRTS = errors.New("queue pair has failed")

// Close takes everything down in reverse order, goes on after a failure and
// reports all of them.
func (e *Endpoint) Close() error {
	var errs []error
	for i := len(e.closers) - 1; i >= 0; i-- {
		errs = append(errs, e.closers[i]())
	}
	e.closers = nil
	return errors.Join(errs...)
}
