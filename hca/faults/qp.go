package faults

import (
	"slices"

	"ipoibd/hca"
)

// QP is a queue pair of a [Device].
type QP struct {
	hca.QP
	dev    *Device
	sendCQ *CQ
	cqs    []*CQ // of all queues

	// Guarded by Device.mu.
	victims []victim  // posted sends for which a fault has fired
	deaf    bool      // receives do not complete
	broken  bool      // a receive failed; later ones are flushed
	fast    *fastPath // created last; nil: none
}

var _ hca.QP = (*QP)(nil)

// victim is a posted send and the fault that applies to its completion.
type victim struct {
	id   uint64
	kind Kind
}

// affected reports whether a fault affects completions of q. Device.mu is held.
func (q *QP) affected() bool { return q.deaf || q.broken || len(q.victims) > 0 }

// Modify implements [hca.QP].
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	if err := q.dev.enter("modify_qp"); err != nil {
		return err
	}
	reset := mask&hca.AttrState != 0 && attr.State == hca.QPReset
	if reset && q.dev.busy.Load() && q.dev.fireOne(ResetFails) {
		return wrap("modify_qp", hca.ErrInvalid)
	}
	err := q.QP.Modify(attr, mask)
	if err == nil && reset { // which ends these faults
		q.dev.mu.Lock()
		defer q.dev.mu.Unlock()
		q.victims, q.deaf, q.broken = nil, false, false
		q.dev.recount()
	}
	return err
}

// Query implements [hca.QP].
func (q *QP) Query() (hca.QPAttr, error) {
	if err := q.dev.enter("query_qp"); err != nil {
		return hca.QPAttr{}, err
	}
	return q.QP.Query()
}

// AttachMulticast implements [hca.QP].
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	if err := q.dev.enter("attach_mcast"); err != nil {
		return err
	}
	return q.QP.AttachMulticast(g)
}

// DetachMulticast implements [hca.QP].
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	q.dev.hang("detach_mcast")
	return q.QP.DetachMulticast(g)
}

// Close implements [hca.QP].
func (q *QP) Close() error {
	q.dev.hang("destroy_qp")
	err := q.QP.Close()
	if err == nil {
		q.forget()
	}
	return err
}

// forget removes q from the table, unless its number already belongs to another QP.
func (q *QP) forget() {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.qps[q.Num()] == q {
		delete(d.qps, q.Num())
	}
	d.recount()
}

// review falsifies a completion of q polled from c. It returns false if the completion must
// be removed. The opcode of a completion in error is invalid, so review also searches the
// marked sends for its ID. Device.mu is held.
func (q *QP) review(c *CQ, wc *hca.WC) bool {
	received := wc.Status == hca.WCSuccess && wc.Opcode == hca.WCRecv
	if received {
		return q.reviewRecv(wc)
	}
	i := slices.IndexFunc(q.victims, func(d victim) bool { return d.id == wc.ID })
	if i < 0 || c != q.sendCQ {
		return true
	}
	kind := q.victims[i].kind
	q.victims = slices.Delete(q.victims, i, i+1)
	return q.execute(kind, wc)
}

func (q *QP) reviewRecv(wc *hca.WC) bool {
	if q.broken {
		wc.Status = hca.WCWRFlushErr
		return true
	}
	if q.deaf {
		return false
	}
	k, ok := q.dev.plan.fireFirst(DeafReceive, RecvErrorErr, RecvFlushErr)
	switch {
	case !ok:
		return true
	case k == DeafReceive:
		q.deaf = true
		return false
	}
	q.broken = true
	return q.execute(k, wc)
}

// execute applies the fault of a request to its completion, unless the request was already
// flushed for another reason. It returns false if the completion must be removed.
func (q *QP) execute(k Kind, wc *hca.WC) bool {
	if k == SwallowedSend {
		return false
	}
	if wc.Status == hca.WCWRFlushErr {
		return true
	}
	if k.toErr() {
		_ = q.QP.Modify(hca.QPAttr{State: hca.QPErr}, hca.AttrState)
	}
	switch {
	case k.silent():
		wc.Status = hca.WCWRFlushErr
	case wc.Status == hca.WCSuccess:
		wc.Status = hca.WCLocProtErr
	}
	return true
}
