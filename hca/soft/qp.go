package soft

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// QP is a UD queue pair: a number, and the queues that have it. All of them are in the same
// state, except that an error of one reaches the others only in settle.
type QP struct {
	dev    *Device
	pd     *PD
	num    hca.QPN
	id     hca.ObjectID
	spec   hca.QPSpec
	queues []*queue
	psns   *softqp.PSNs // of all queues, and of the fast path
	closed atomic.Bool
	fast   atomic.Pointer[fastPath] // nil: no fast path
}

// queue is a send queue and a receive queue of a QP: an engine's QP with its locks and its CQs.
type queue struct {
	qp     *QP
	lane   *lane // through which it sends
	core   *softqp.QP
	sendCQ *CQ
	recvCQ *CQ

	sendMu  sync.Mutex
	batch   *softqp.Batch
	blocked bool      // the transport is full, or much has been sent; the drain resumes it
	posted  []packets // the sends in the engine, and those that have left it since the last pump; see fastPath

	recvMu   sync.Mutex
	starving bool          // a message was dropped after waiting for a receive since the last post
	awaited  bool          // the receiving goroutine waits for refilled
	waits    waits         // the budget of these waits
	arrived  []uint32      // the flows of the messages of this run; see fastPath
	refilled chan struct{} // gets a token when receives are posted during the wait
}

var (
	_ hca.QP           = (*QP)(nil)
	_ hca.Queue        = (*queue)(nil)
	_ hca.QueueCreator = (*PD)(nil)
)

// CreateQP implements [hca.PD]; it does not block.
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	q, err := p.create(spec, []hca.CQPair{{Send: sendCQ, Recv: recvCQ}})
	if err != nil {
		return nil, err
	}
	return q, nil
}

// CreateQueues implements [hca.QueueCreator]; it does not block. Queue i sends through lane i, and
// gets the messages that arrive there. If there are more lanes than queues, several lanes share a
// queue. If there are fewer, several queues send through one lane, and only the first of them
// gets messages, except those that a queue sends to its own QP, which return to that queue.
func (p *PD) CreateQueues(spec hca.QPSpec, cqs []hca.CQPair) (hca.QP, []hca.Queue, error) {
	q, err := p.create(spec, cqs)
	if err != nil {
		return nil, nil, err
	}
	queues := []hca.Queue{q}
	for _, x := range q.queues[1:] {
		queues = append(queues, x)
	}
	return q, queues, nil
}

func (p *PD) create(spec hca.QPSpec, cqs []hca.CQPair) (*QP, error) {
	d := p.dev
	if spec.Queues < 0 || max(1, spec.Queues) != len(cqs) || len(cqs) > maxQueues {
		return nil, verb("create_qp", d.cfg.Name, hca.ErrInvalid)
	}
	in := func(n, limit int) bool { return n >= 1 && n <= limit }
	if !in(spec.SendWRs, maxQPWR) || !in(spec.RecvWRs, maxQPWR) ||
		!in(spec.SendSGEs, softqp.MaxSGE) || !in(spec.RecvSGEs, softqp.MaxSGE) {
		return nil, verb("create_qp", d.cfg.Name, hca.ErrRange)
	}
	if err := p.lockUsable(); err != nil {
		return nil, verb("create_qp", d.cfg.Name, err)
	}
	defer d.mu.Unlock()
	q := &QP{dev: d, pd: p, num: d.newQPN(spec.Num), spec: spec, psns: softqp.NewPSNs()}
	for i, pair := range cqs {
		s, r := d.ownCQ(pair.Send), d.ownCQ(pair.Recv)
		if s == nil || r == nil {
			return nil, verb("create_qp", d.cfg.Name, hca.ErrInvalid)
		}
		q.queues = append(q.queues, &queue{
			qp: q, lane: d.lanes[i%len(d.lanes)], sendCQ: s, recvCQ: r,
			core:     softqp.New(softqp.Config{Num: q.num, PD: p.id, Spec: spec, PSNs: q.psns}),
			batch:    new(softqp.Batch),
			refilled: make(chan struct{}, 1),
		})
	}
	q.id = hca.ObjectID{Kind: hca.KindQP, Num: uint32(q.num), Generation: d.newID()}
	for i, x := range q.queues {
		x.sendCQ.users++
		x.recvCQ.users++
		if i < len(d.lanes) { // the others get only messages of this port, from their senders
			x.recvCQ.receiveFrom(x.lane)
		}
	}
	p.children++
	d.setQPs(d.routes.Load().withQP(q))
	return q, nil
}

// setQPs replaces the QPs. A stand-in that waits for the receives of one QP looks whether there are others.
// d.mu is held.
func (d *Device) setQPs(r *routes) {
	d.routes.Store(r)
	for _, l := range d.lanes {
		notify(l.turn.wanted)
	}
}

// ownCQ returns an open CQ of this device, else nil. d.mu is held.
func (d *Device) ownCQ(cq hca.CQ) *CQ {
	c, ok := cq.(*CQ)
	if !ok || c.dev != d {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	return c
}

// newQPN returns the wanted QPN, or else draws one: a free QPN of this device that has no special
// meaning. d.mu is held.
func (d *Device) newQPN(want hca.QPN) hca.QPN {
	for n := want; ; n = hca.QPN(d.cfg.Rand.Uint32N(uint32(hca.QPNMask + 1))) {
		_, taken := d.routes.Load().qps[n]
		if !taken && n > hca.QPNGSI && n < hca.QPNMulticast {
			return n
		}
	}
}

// lock locks both sides of all queues. Only a function that changes the QP as a whole holds
// two locks of one kind, in the order of the queues.
func (q *QP) lock() {
	for _, x := range q.queues {
		x.sendMu.Lock()
	}
	for _, x := range q.queues {
		x.recvMu.Lock()
	}
}

func (q *QP) unlock() {
	for _, x := range q.queues {
		x.recvMu.Unlock()
		x.sendMu.Unlock()
	}
}

// lock locks both sides of one queue.
func (q *queue) lock() {
	q.sendMu.Lock()
	q.recvMu.Lock()
}

func (q *queue) unlock() {
	q.recvMu.Unlock()
	q.sendMu.Unlock()
}

// usable returns the error of verbs on q, or nil if they are possible.
func (q *QP) usable() error {
	switch {
	case q.closed.Load():
		return hca.ErrClosed
	case q.dev.lost.Load():
		return hca.ErrIO
	}
	return nil
}

// ID implements [hca.QP].
func (q *QP) ID() hca.ObjectID { return q.id }

// Num implements [hca.QP].
func (q *QP) Num() hca.QPN { return q.num }

// Spec implements [hca.QP].
func (q *QP) Spec() hca.QPSpec { return q.spec }

// Num implements [hca.Queue].
func (q *queue) Num() hca.QPN { return q.qp.num }

// Spec implements [hca.Queue].
func (q *queue) Spec() hca.QPSpec { return q.qp.spec }

// Modify implements [hca.QP]. Leaving SQD for RTS sends the waiting requests.
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	if err := q.usable(); err != nil {
		return verb("modify_qp", q.num.String(), err)
	}
	err := q.modify(attr, mask)
	q.dev.settle()
	q.updateGate()
	return verb("modify_qp", q.num.String(), err)
}

// modify changes all queues or none: they have the same state and attributes, so all of them
// accept a change or the first one refuses it.
func (q *QP) modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	q.lock()
	q.shut()
	q.settleLocked()
	env := q.dev.env()
	for _, x := range q.queues {
		if err := x.core.Modify(attr, mask, &env); err != nil {
			q.unlock()
			return err
		}
	}
	if attr.State == hca.QPReset {
		q.purge()
	}
	for _, x := range q.queues {
		x.recvCQ.push(x.core.RecvDone())
		x.recvMu.Unlock() // pump may deliver to this very QP
	}
	for _, x := range q.queues {
		x.pump(false)
		x.sendMu.Unlock()
	}
	return nil
}

// settleLocked applies the errors of one side or one queue to the whole QP, and delivers the
// completions that the engine has held back. All queues are locked.
func (q *QP) settleLocked() {
	failed := hca.QPReset
	for _, x := range q.queues {
		x.core.Settle()
		if s := x.core.Query().State; s == hca.QPErr || s == hca.QPSQE && failed != hca.QPErr {
			failed = s
		}
	}
	if failed != hca.QPReset {
		q.shut()
	}
	for _, x := range q.queues {
		if failed != hca.QPReset && len(q.queues) > 1 {
			x.core.Follow(failed)
		}
		x.sendCQ.push(x.core.SendDone())
		x.recvCQ.push(x.core.RecvDone())
	}
}

// purge removes the QP's completions from its CQs. All queues must be locked.
func (q *QP) purge() {
	for _, x := range q.queues {
		x.sendCQ.purge(q.num)
		x.recvCQ.purge(q.num)
	}
}

// Query implements [hca.QP]; it does not block. The packet sequence number is that of all queues
// and of the fast path.
func (q *QP) Query() (hca.QPAttr, error) {
	if err := q.usable(); err != nil {
		return hca.QPAttr{}, verb("query_qp", q.num.String(), err)
	}
	q.lock()
	defer q.unlock()
	q.settleLocked()
	return q.queues[0].core.Query(), nil
}

// Close implements [hca.QP]. The device's lock is free while the fast path is closed, which makes system calls.
func (q *QP) Close() error {
	fast, err := q.close()
	if fast != nil {
		err = errors.Join(err, fast.Close())
	}
	return err
}

// close returns the fast path to close; nil: there is none.
func (q *QP) close() (*fastPath, error) {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	if slices.Contains(r.attached, q) {
		return nil, verb("destroy_qp", q.num.String(), hca.ErrBusy)
	}
	if q.closed.Swap(true) {
		return nil, nil
	}
	d.setQPs(r.withoutQP(q))
	q.lock() // nothing reaches the QP any more
	q.shut()
	for _, x := range q.queues {
		x.core.Reset()
	}
	q.purge()
	q.unlock()
	for _, x := range q.queues {
		x.sendCQ.users--
		x.recvCQ.users--
	}
	q.pd.children--
	return q.fast.Load(), nil
}
