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

	// Guarded by Device.mu.
	doomed []doom // posted sends that a fault struck
	deaf   bool   // receives give nothing
	broken bool   // a receive failed: later ones are flushed
}

var _ hca.QP = (*QP)(nil)

// doom is what awaits a posted send.
type doom struct {
	id   uint64
	kind Kind
}

func (d *Device) newQP(inner hca.QP, sendCQ *CQ) *QP {
	q := &QP{QP: inner, dev: d, sendCQ: sendCQ}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.qps[inner.Num()] = q
	return q
}

// suffers reports whether completions of q need a look. Device.mu is held.
func (q *QP) suffers() bool { return q.deaf || q.broken || len(q.doomed) > 0 }

// heal ends what a reset ends.
func (q *QP) heal() {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.doomed, q.deaf, q.broken = nil, false, false
	q.dev.recount()
}

// Modify implements [hca.QP].
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	if err := q.dev.enter("modify_qp"); err != nil {
		return err
	}
	reset := mask&hca.AttrState != 0 && attr.State == hca.QPReset
	if reset && q.dev.busy.Load() && q.dev.strikeOne(ResetFails) {
		return wrap("modify_qp", hca.ErrInvalid)
	}
	err := q.QP.Modify(attr, mask)
	if err == nil && reset {
		q.heal()
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

// forget takes q out of the table, where a successor of its number may be
// already.
func (q *QP) forget() {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.qps[q.Num()] == q {
		delete(d.qps, q.Num())
	}
	d.recount()
}

// review falsifies a completion of q that c gave; false takes it out. One in
// error does not say whether it is of a send. Device.mu is held.
func (q *QP) review(c *CQ, wc *hca.WC) bool {
	received := wc.Status == hca.WCSuccess && wc.Opcode == hca.WCRecv
	if received {
		return q.reviewRecv(wc)
	}
	i := slices.IndexFunc(q.doomed, func(d doom) bool { return d.id == wc.ID })
	if i < 0 || c != q.sendCQ {
		return true
	}
	kind := q.doomed[i].kind
	q.doomed = slices.Delete(q.doomed, i, i+1)
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
	k, ok := q.dev.plan.first(DeafReceive, RecvErrorErr, RecvFlushErr)
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

// execute does to a request what its fault asks for. One that was flushed for
// another reason before stays as it is.
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
