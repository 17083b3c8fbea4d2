package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/qprecovery"
	"ipoibd/ud/port"
)

// Spec is what an interface needs of a session.
type Spec struct {
	Plan       port.Plan
	Queues     int     // of the queue pair; 0 means 1
	SendWRs    int     // of each queue; those with an entry for each segment may be longer
	RecvWRs    int     // of each queue
	SendStride int     // bytes of one send slot
	RecvStride int     // bytes of one receive slot
	QPN        hca.QPN // wanted number of the first queue pair; 0: any (see hca.QPSpec.Num)
	LROUDP     bool    // the host accepts joined messages of UDP; see hca.QPSpec
	// FastPath describes the fast path to create with each queue pair, but for the index of the GID; nil: none.
	FastPath *hca.FastPathSpec
	// OnEvent is called with each event of the queue pair and its CQs, and the generation
	// of the object. It does not block. May be nil.
	OnEvent func(gen uint32, ev hca.AsyncEvent)
	// OnRefused is called with the error of each group that the device refuses. It does not
	// block. May be nil.
	OnRefused func(error)
}

// Endpoint is a queue pair with everything that it needs, in layers. The inner layers can
// be rebuilt while the outer ones stay (R1, R2):
//
//	domain  | PD, MRs                    | as long as the session
//	handles | address handles            | as long as the session
//	CQs     | send and receive CQs       | until a CQ fails
//	QP      | the queue pair, its groups | until it cannot be reset
//
// One goroutine at a time owns it. Workers make the address handles of peers.
type Endpoint struct {
	Spec   Spec
	QP     hca.QP // nil between Stop and Start
	Queues []Queue
	AHs    *AHWorkers
	Fast   FastPath // of the queue pair
	// Refused is how many groups of the plan the device has refused. Any goroutine may load it.
	Refused atomic.Int32

	session  Session
	gen      atomic.Uint32 // of the queue pair
	pd       hca.PD
	self     hca.AH
	groupAHs map[port.Group]hca.AH // of the plan's groups; belong to AHs
	attached *attached             // of the queue pair

	domain, handles, cqs, qp closers
	proof                    closers // objects that a proof could not release yet
}

// Queue is a queue of an endpoint's queue pair, with its CQs and the memory of its slots.
type Queue struct {
	hca.Queue
	SendCQ, RecvCQ hca.CQ
	SendMR, RecvMR hca.MR
}

// closers are functions that undo what was done, in order of creation.
type closers []func() error

func (c *closers) add(f func() error) { *c = append(*c, f) }

// close undoes in reverse order, continues after a failure, and reports all failures. An
// object that is busy is kept: it can be closed once its users are gone.
func (c *closers) close() error {
	var errs []error
	var busy closers
	for _, undo := range slices.Backward(*c) {
		err := undo()
		if errors.Is(err, hca.ErrBusy) {
			busy.add(undo)
		}
		errs = append(errs, err)
	}
	slices.Reverse(busy)
	*c = busy
	return errors.Join(errs...)
}

// Open builds an endpoint of generation gen. The caller must hold the session from
// before the call until Close. On error nothing is left behind. It blocks as long as its
// verbs.
func Open(s Session, spec Spec, gen uint32) (*Endpoint, error) {
	e := &Endpoint{Spec: spec, session: s, groupAHs: map[port.Group]hca.AH{}}
	if err := e.build(gen); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e, nil
}

func (e *Endpoint) build(gen uint32) (err error) {
	if e.pd, err = e.session.AllocPD(); err != nil {
		return err
	}
	e.domain.add(e.pd.Close)
	e.Queues = make([]Queue, max(1, e.Spec.Queues))
	for i := range e.Queues {
		q := &e.Queues[i]
		if q.SendMR, err = e.pd.AllocMR(e.Spec.SendWRs*e.Spec.SendStride, 0); err != nil {
			return err
		}
		e.domain.add(q.SendMR.Close)
		if q.RecvMR, err = e.pd.AllocMR(e.Spec.RecvWRs*e.Spec.RecvStride, hca.AccessLocalWrite); err != nil {
			return err
		}
		e.domain.add(q.RecvMR.Close)
	}
	e.AHs = newAHWorkers(e.pd)
	e.handles.add(e.AHs.Close)
	if err := e.createSelf(); err != nil {
		return err
	}
	return e.Start(qprecovery.RungRebuildCQ, gen)
}

// createSelf makes the address handle of this port.
func (e *Endpoint) createSelf() (err error) {
	if e.self, err = e.AHs.create(e.Spec.Plan.SelfAH()); err != nil {
		return fmt.Errorf("create address handle of this port: %w", err)
	}
	return nil
}

// Self returns the queue pair's own address.
func (e *Endpoint) Self() hca.UDDest {
	return hca.UDDest{AH: e.self, QPN: e.QP.Num(), QKey: e.Spec.Plan.Broadcast().QKey}
}

// Resume moves a queue pair from SQE to RTS. Posted requests stay.
func (e *Endpoint) Resume() error { return e.modify(hca.QPRTS) }

// Fail moves the queue pair to ERR, so that posted requests complete as flushed.
func (e *Endpoint) Fail() error { return e.modify(hca.QPErr) }

// Stop is the first half of a rung: it destroys the QP and the CQs that the rung replaces;
// a QP that stays is moved to RESET. It continues after a failure.
func (e *Endpoint) Stop(rung qprecovery.Rung) error {
	if !rung.Replaces(qprecovery.ScopeQP) {
		return e.reset()
	}
	err := e.qp.close()
	e.QP = nil
	if rung.Replaces(qprecovery.ScopeCQs) {
		err = errors.Join(err, e.cqs.close())
	}
	return err
}

// reset moves the queue pair to RESET. A queue pair already in RESET may refuse.
func (e *Endpoint) reset() error {
	err := e.modify(hca.QPReset)
	if err == nil || e.QP == nil {
		return err
	}
	attr, qerr := e.QP.Query()
	class := qprecovery.OfVerbError(qprecovery.VerbModifyQP, err)
	if qerr == nil && qprecovery.AlreadyThere(class, hca.QPReset, attr.State) == qprecovery.ClassSuccess {
		return nil
	}
	return errors.Join(err, qerr)
}

// Start is the second half of a rung. It leaves the queue pair in RTS and attached to its
// groups; new objects get generation gen. On error a higher rung is needed.
func (e *Endpoint) Start(rung qprecovery.Rung, gen uint32) error {
	if rung.Replaces(qprecovery.ScopeCQs) {
		if err := e.createCQs(gen); err != nil {
			return err
		}
	}
	e.gen.Store(gen)
	if rung.Replaces(qprecovery.ScopeQP) {
		if err := e.createQP(); err != nil {
			return err
		}
	}
	if e.QP == nil {
		return fmt.Errorf("move queue pair to INIT: it does not exist: %w", hca.ErrInvalid)
	}
	err := Activate(e.QP, e.Spec.Plan, e.Spec.Plan.Broadcast().QKey)
	if err != nil || !rung.Replaces(qprecovery.ScopeQP) {
		return err
	}
	return e.attachGroups()
}

// createCQs gives each queue its own pair of CQs, with one entry per request, so that none
// can overrun.
func (e *Endpoint) createCQs(gen uint32) error {
	for i := range e.Queues {
		q := &e.Queues[i]
		for _, c := range []struct {
			cq      *hca.CQ
			entries int
		}{{&q.SendCQ, e.sendDepth()}, {&q.RecvCQ, e.Spec.RecvWRs}} {
			cq, err := e.session.CreateCQ(hca.CQSpec{Entries: c.entries})
			if err != nil {
				return err
			}
			*c.cq = cq
			e.cqs.add(cq.Close)
			e.watch(&e.cqs, cq.ID(), func() uint32 { return gen })
		}
	}
	return nil
}

// sendDepth returns the length of a send queue. A large send that needs an entry for each segment
// fits even if the queue has fewer slots than it has segments.
func (e *Endpoint) sendDepth() int {
	dev := e.session.Attr()
	if !dev.TSOEntries {
		return e.Spec.SendWRs
	}
	return max(e.Spec.SendWRs, min(hca.MaxLSOSegments, dev.MaxQPWR, dev.MaxCQE))
}

func (e *Endpoint) createQP() error {
	spec := hca.QPSpec{
		Num: e.Spec.QPN, Queues: len(e.Queues),
		SendWRs: e.sendDepth(), RecvWRs: e.Spec.RecvWRs,
		SendSGEs: 2, RecvSGEs: 1,
		LRO: e.session.Attr().LRO, LROUDP: e.Spec.LROUDP,
		BlockLoopback: e.session.Attr().BlocksLoop,
	}
	var cqs []hca.CQPair
	for _, q := range e.Queues {
		cqs = append(cqs, hca.CQPair{Send: q.SendCQ, Recv: q.RecvCQ})
	}
	qp, queues, err := hca.CreateQueues(e.pd, spec, cqs)
	if err != nil {
		return err
	}
	e.QP, e.Spec.QPN = qp, 0
	for i, q := range queues {
		e.Queues[i].Queue = q
	}
	e.qp.add(qp.Close)
	e.watch(&e.qp, qp.ID(), e.gen.Load)
	a := &attached{qp: qp}
	e.attached = a
	e.qp.add(func() error { return a.keep(nil) })
	e.createFastPath()
	return nil
}

// createFastPath creates the fast path of the queue pair, which works without one as well.
func (e *Endpoint) createFastPath() {
	e.Fast = FastPath{}
	if e.Spec.FastPath == nil {
		return
	}
	spec := *e.Spec.FastPath
	spec.SGIDIndex = e.Spec.Plan.GIDIndex
	if e.Fast.Path, e.Fast.Err = hca.CreateFastPath(e.QP, spec); e.Fast.Err == nil {
		e.qp.add(e.Fast.Path.Close)
	}
}

// FastPath is the fast path of a queue pair, or why the device did not create the one that Spec asks for.
type FastPath struct {
	Path hca.FastPath
	Err  error
}

// watch forwards an object's events until the object is closed. A reset changes the
// generation of a queue pair.
func (e *Endpoint) watch(until *closers, id hca.ObjectID, gen func() uint32) {
	if e.Spec.OnEvent == nil {
		return
	}
	stop := e.session.Watch(id, func(ev hca.AsyncEvent) { e.Spec.OnEvent(gen(), ev) })
	until.add(func() error { stop(); return nil })
}

// Activate moves a queue pair from RESET to RTS.
func Activate(qp hca.QP, p port.Plan, key hca.QKey) error {
	for _, step := range []struct {
		attr hca.QPAttr
		mask hca.QPAttrMask
	}{
		{
			hca.QPAttr{State: hca.QPInit, PKeyIndex: p.PKeyIndex, Port: p.Port, QKey: key},
			hca.AttrState | hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey,
		},
		{hca.QPAttr{State: hca.QPRTR}, hca.AttrState},
		{hca.QPAttr{State: hca.QPRTS, SQPSN: rand.Uint32() & 0xffffff}, hca.AttrState | hca.AttrSQPSN},
	} {
		if err := qp.Modify(step.attr, step.mask); err != nil {
			return fmt.Errorf("move queue pair to %s: %w", step.attr.State, err)
		}
	}
	return nil
}

func (e *Endpoint) modify(to hca.QPState) error {
	if e.QP == nil {
		return fmt.Errorf("move queue pair to %s: it does not exist: %w", to, hca.ErrInvalid)
	}
	if err := e.QP.Modify(hca.QPAttr{State: to}, hca.AttrState); err != nil {
		return fmt.Errorf("move queue pair to %s: %w", to, err)
	}
	return nil
}

// State returns the state of the queue pair, or the error of a CQ that is in error. It may
// block.
func (e *Endpoint) State() (hca.QPState, error) {
	for _, q := range e.Queues {
		for _, cq := range []hca.CQ{q.SendCQ, q.RecvCQ} {
			by := NewCaller(e.session, nil, cq)
			if err := by.Do(func() error { _, err := by.CQ.Poll(nil); return err }); err != nil {
				return 0, err
			}
		}
	}
	attr, err := e.QP.Query()
	return attr.State, err
}

// Close closes everything, continues after a failure, and reports all failures. Objects are
// closed before those that they depend on (R12): address handles, groups, queue pair, CQs,
// MRs, PD. Posted requests are dropped before that, so that nothing uses the handles any
// more; a device that is gone uses none. Objects that a hanging verb keeps busy are closed
// in error state, where closing cannot fail.
func (e *Endpoint) Close() error {
	err := e.takeDown()
	if errors.Is(err, hca.ErrBusy) {
		e.session.Fail(err)
		err = errors.Join(err, e.takeDown())
	}
	return err
}

func (e *Endpoint) takeDown() error {
	var err error
	if e.QP != nil {
		if err = e.Stop(qprecovery.RungResetQP); errors.Is(err, hca.ErrIO) && !errors.Is(err, hca.ErrStuck) {
			err = nil
		}
	}
	return errors.Join(err, e.proof.close(), e.handles.close(), e.Stop(qprecovery.RungRebuildCQ), e.domain.close())
}
