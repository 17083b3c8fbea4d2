package soft

import (
	"slices"
	"sync"
	"sync/atomic"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// QP is a UD queue pair: the engine's QP with its locks and its CQs.
type QP struct {
	dev    *Device
	lane   *lane // that it sends by
	pd     *PD
	num    hca.QPN
	id     hca.ObjectID
	core   *softqp.QP
	sendCQ *CQ
	recvCQ *CQ
	closed atomic.Bool

	sendMu  sync.Mutex
	batch   *softqp.Batch
	blocked bool // the transport is full, or much has been sent; the drain resumes it

	recvMu   sync.Mutex
	starving bool          // a message was dropped after waiting for a receive since the last post
	awaited  bool          // the receiving goroutine waits for refilled
	waits    waits         // the budget of these waits
	refilled chan struct{} // gets a token when receives are posted during the wait
}

var _ hca.QP = (*QP)(nil)

// CreateQP implements [hca.PD]; it does not block.
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	if spec.Queues < 0 || spec.Queues > maxQueues {
		return nil, verb("create_qp", p.dev.cfg.Name, hca.ErrInvalid)
	}
	in := func(n, limit int) bool { return n >= 1 && n <= limit }
	if !in(spec.SendWRs, maxQPWR) || !in(spec.RecvWRs, maxQPWR) || !in(spec.SendSGEs, softqp.MaxSGE) || !in(spec.RecvSGEs, softqp.MaxSGE) {
		return nil, verb("create_qp", p.dev.cfg.Name, hca.ErrRange)
	}
	if err := p.lockUsable(); err != nil {
		return nil, verb("create_qp", p.dev.cfg.Name, err)
	}
	defer p.dev.mu.Unlock()
	s, r := p.dev.ownCQ(sendCQ), p.dev.ownCQ(recvCQ)
	if s == nil || r == nil {
		return nil, verb("create_qp", p.dev.cfg.Name, hca.ErrInvalid)
	}
	num := p.dev.newQPN()
	q := &QP{
		dev: p.dev, lane: p.dev.lanes[0], pd: p, num: num, sendCQ: s, recvCQ: r,
		id:       hca.ObjectID{Kind: hca.KindQP, Num: uint32(num), Generation: p.dev.newID()},
		core:     softqp.New(softqp.Config{Num: num, PD: p.id, Spec: spec}),
		batch:    new(softqp.Batch),
		refilled: make(chan struct{}, 1),
	}
	s.users++
	r.users++
	r.receives.Store(true)
	p.children++
	p.dev.routes.Store(p.dev.routes.Load().withQP(q))
	return q, nil
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

// newQPN draws a free QPN of this device that has no special meaning. d.mu is held.
func (d *Device) newQPN() hca.QPN {
	first, last := hca.QPN(0), hca.QPNMask
	if d.cfg.QPNs != (softqp.QPNs{}) {
		first, last = d.cfg.QPNs.First, d.cfg.QPNs.Last
	}
	for {
		n := first + hca.QPN(d.cfg.Rand.Uint32N(uint32(last-first+1)))
		_, taken := d.routes.Load().qps[n]
		if !taken && n > hca.QPNGSI && n != hca.QPNMulticast {
			return n
		}
	}
}

// lock holds both sides.
func (q *QP) lock() {
	q.sendMu.Lock()
	q.recvMu.Lock()
}

func (q *QP) unlock() {
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
func (q *QP) Spec() hca.QPSpec { return q.core.Config().Spec }

// Modify implements [hca.QP]. Leaving SQD for RTS sends the waiting requests.
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	if err := q.usable(); err != nil {
		return verb("modify_qp", q.num.String(), err)
	}
	err := q.modify(attr, mask)
	q.dev.settle()
	return verb("modify_qp", q.num.String(), err)
}

func (q *QP) modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	q.lock()
	q.settleLocked()
	if err := q.core.Modify(attr, mask, q.dev.env.Load()); err != nil {
		q.unlock()
		return err
	}
	if attr.State == hca.QPReset {
		q.purge()
	}
	q.recvCQ.push(q.core.RecvDone())
	q.recvMu.Unlock() // pump may deliver to this very QP
	q.pump(false)
	q.sendMu.Unlock()
	return nil
}

// purge removes the QP's completions from its CQs. Both sides must be held.
func (q *QP) purge() {
	q.sendCQ.purge(q.num)
	q.recvCQ.purge(q.num)
}

// Query implements [hca.QP]; it does not block.
func (q *QP) Query() (hca.QPAttr, error) {
	if err := q.usable(); err != nil {
		return hca.QPAttr{}, verb("query_qp", q.num.String(), err)
	}
	q.lock()
	defer q.unlock()
	q.settleLocked()
	return q.core.Query(), nil
}

// Close implements [hca.QP].
func (q *QP) Close() error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.routes.Load()
	if slices.Contains(r.attached, q) {
		return verb("destroy_qp", q.num.String(), hca.ErrBusy)
	}
	if q.closed.Swap(true) {
		return nil
	}
	d.routes.Store(r.withoutQP(q))
	q.lock() // nothing reaches the QP any more
	q.core.Reset()
	q.purge()
	q.unlock()
	q.sendCQ.users--
	q.recvCQ.users--
	q.pd.children--
	return nil
}
