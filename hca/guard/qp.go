package guard

import "ipoibd/hca"

// QP is a guarded [hca.QP].
type QP struct {
	object
	inner  hca.QP
	id     hca.ObjectID
	sendCQ *CQ
	recvCQ *CQ
	send   queue
	recv   queue
	all    bool // every send completes, also an unsignaled one
	groups groups
	out    []hca.SendWR // the requests of the current PostSend, with the backend's AHs
}

var _ hca.QP = (*QP)(nil)

// CreateQP implements [hca.PD].
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	s, r := p.dev.own(sendCQ), p.dev.own(recvCQ)
	if s == nil || r == nil {
		return nil, p.dev.wrap("create_qp", hca.ErrInvalid)
	}
	v := verb{name: "create_qp", on: []*object{&p.object, &s.object, &r.object}}
	return create[hca.QP](p.dev, v, func() (hca.QP, error) {
		inner, err := p.inner.CreateQP(spec, s.inner, r.inner)
		if err != nil {
			return nil, err
		}
		return p.newQP(inner, s, r), nil
	})
}

// closeInner closes the backend's QP. In the failed state it also detaches it, because
// DetachMulticast does not reach the backend then.
func (q *QP) closeInner() error {
	if q.dev.Err() != nil {
		_ = q.groups.detachAll(q.inner) // Close fails if a group is left
	}
	return q.inner.Close()
}

// own returns cq if it belongs to this device, else nil.
func (d *Device) own(cq hca.CQ) *CQ {
	if c, ok := cq.(*CQ); ok && c.dev == d {
		return c
	}
	return nil
}

func (p *PD) newQP(inner hca.QP, s, r *CQ) *QP {
	num, spec := inner.Num(), inner.Spec()
	q := &QP{
		inner: inner, id: newID(inner.ID()), sendCQ: s, recvCQ: r,
		send: queue{qpn: num, op: hca.WCSend, book: newBook(spec.SendWRs)},
		recv: queue{qpn: num, op: hca.WCRecv, book: newBook(spec.RecvWRs)},
		all:  spec.SignalAll,
		out:  make([]hca.SendWR, min(spec.SendWRs, hca.Batch)),
	}
	q.object = p.child("destroy_qp", q.closeInner)
	q.parents = append(q.parents, &s.object, &r.object)
	q.onGone = func() { delete(p.dev.registry.ids, inner.ID()) }
	s.attach(&q.send, true)
	r.attach(&q.recv, false)
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.dev.registry.ids[inner.ID()] = q.id
	hold(q.parents)
	return q
}

// ID implements [hca.QP].
func (q *QP) ID() hca.ObjectID { return q.id }

// Num implements [hca.QP].
func (q *QP) Num() hca.QPN { return q.inner.Num() }

// Spec implements [hca.QP].
func (q *QP) Spec() hca.QPSpec { return q.inner.Spec() }

// Close implements [hca.QP]. Posted requests are dropped.
func (q *QP) Close() error {
	err := q.release()
	if err == nil {
		q.sendCQ.detach(&q.send)
		q.recvCQ.detach(&q.recv)
	}
	return err
}

// Modify implements [hca.QP].
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	err := q.do("modify_qp", func() error { return q.inner.Modify(attr, mask) })
	if err == nil && mask&hca.AttrState != 0 && attr.State == hca.QPReset {
		q.sendCQ.clear(&q.send)
		q.recvCQ.clear(&q.recv)
	}
	return err
}

// clear removes the posted requests of a queue.
func (c *CQ) clear(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q.book.clear()
}

// Query implements [hca.QP].
func (q *QP) Query() (hca.QPAttr, error) {
	return ask(q.dev, verb{name: "query_qp", on: []*object{&q.object}}, q.inner.Query)
}

// AttachMulticast implements [hca.QP].
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	return q.do("attach_mcast", func() error { return q.groups.attach(q.inner, g) })
}

// DetachMulticast implements [hca.QP]. In the failed state it succeeds like any release, and
// the backend detaches the QP before it closes it.
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	err := q.do("detach_mcast", func() error { return q.groups.detach(q.inner, g) })
	if q.dev.Err() != nil {
		return nil
	}
	return err
}

// do calls a verb that returns only an error.
func (q *QP) do(name string, f func() error) error {
	_, err := ask(q.dev, verb{name: name, on: []*object{&q.object}},
		func() (struct{}, error) { return struct{}{}, f() })
	return err
}
