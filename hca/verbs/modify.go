//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"time"

	"ipoibd/hca"
)

// Modify implements [hca.QP]. It checks the arguments, because drivers are lenient: rxe
// accepts a CurState that is not the current one, and any P_Key index.
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	if err := q.enter(); err != nil {
		return refused("modify_qp", q.num.String(), err)
	}
	defer q.leave()
	q.modifyMu.Lock()
	defer q.modifyMu.Unlock()
	cur, err := q.query()
	if err != nil {
		return err
	}
	if !allowed(cur.State, &attr, mask) {
		return refused("modify_qp", q.num.String(), hca.ErrInvalid)
	}
	if err := q.checkPKey(&cur, &attr, mask); err != nil {
		return err
	}
	if err := q.prepare(cur.State, attr.State); err != nil {
		return err
	}
	return q.move(cur.State, &attr, mask)
}

// allowed checks a transition against the table of the contract. The mask must contain
// AttrState.
func allowed(cur hca.QPState, attr *hca.QPAttr, mask hca.QPAttrMask) bool {
	switch {
	case mask&hca.AttrState == 0, mask&hca.AttrCurState != 0 && attr.CurState != cur:
		return false
	}
	return hca.UDTransition(cur, attr.State).Check(mask)
}

// checkPKey returns an error for an index outside the port's table.
func (q *QP) checkPKey(cur, attr *hca.QPAttr, mask hca.QPAttrMask) error {
	if mask&hca.AttrPKeyIndex == 0 {
		return nil
	}
	port := cur.Port
	if mask&hca.AttrPort != 0 {
		port = attr.Port
	}
	a, err := q.pd.dev.portAttr(port)
	if err == nil && attr.PKeyIndex >= uint16(a.pkey_tbl_len) {
		err = hca.ErrInvalid
	}
	return refused("modify_qp", q.num.String(), err)
}

// prepare does what Linux requires before a transition that the contract allows.
func (q *QP) prepare(from, to hca.QPState) error {
	switch {
	case from == hca.QPReset && to == hca.QPErr:
		// qp_state_table in drivers/infiniband/core/verbs.c allows ERR only from INIT on.
		init := hca.QPAttr{State: hca.QPInit, Port: 1}
		return q.modify(&init, hca.AttrState|hca.UDTransition(from, hca.QPInit).Required)
	case from == hca.QPSQD && to == hca.QPReset:
		// A queue that is still draining refuses every state but ERR (sw/rxe/rxe_qp.c).
		// RESET drops the completions that ERR flushes.
		return q.modify(&hca.QPAttr{State: hca.QPErr}, hca.AttrState)
	case from == hca.QPSQD && to != hca.QPErr:
		return q.drain()
	}
	return nil
}

// How long a send queue may take to drain, and how often it is queried. On UD it drains as
// soon as the current sends are on the wire, so it does not pay to wait for the event
// SQ_DRAINED, which would have to be taken from the owner of the device's events.
const (
	drainLimit = time.Second
	drainStep  = time.Millisecond
)

// drain waits until a QP in SQD has drained. If that takes too long, it returns nil, and the
// driver decides about the transition.
func (q *QP) drain() error {
	tick := time.NewTicker(drainStep)
	defer tick.Stop()
	for end := time.Now().Add(drainLimit); time.Now().Before(end); <-tick.C {
		a, err := q.queryRaw()
		if err != nil || a.sq_draining == 0 {
			return err
		}
	}
	return nil
}

// move makes an allowed transition. During a transition to RESET, posts are excluded: a
// request posted after the kernel has emptied the queue would be executed later.
func (q *QP) move(from hca.QPState, attr *hca.QPAttr, mask hca.QPAttrMask) error {
	if attr.State == hca.QPReset {
		q.gate(hca.QPReset)
	}
	if err := q.modify(attr, mask); err != nil {
		q.gate(from)
		return err
	}
	if attr.State == hca.QPReset {
		q.purge()
	}
	q.gate(attr.State)
	return nil
}

// gate opens or closes both queues as a state requires, after current posts have ended.
func (q *QP) gate(s hca.QPState) {
	q.send.gate(s.SendQueue())
	q.recv.gate(s.RecvQueue())
}

// modify calls the verb.
func (q *QP) modify(attr *hca.QPAttr, mask hca.QPAttrMask) error {
	a := C.struct_ibv_qp_attr{
		qp_state: uint32(attr.State), cur_qp_state: uint32(attr.CurState),
		pkey_index: C.uint16_t(attr.PKeyIndex), port_num: C.uint8_t(attr.Port),
		qkey: C.uint32_t(attr.QKey), sq_psn: C.uint32_t(attr.SQPSN),
	}
	err := failed("modify_qp", q.num.String(), errno(C.shim_modify_qp(q.qp, &a, C.int(mask))))
	if err == nil && mask&hca.AttrQKey != 0 {
		q.qkey.Store(uint32(attr.QKey))
	}
	return err
}

// Query implements [hca.QP].
func (q *QP) Query() (hca.QPAttr, error) {
	if err := q.enter(); err != nil {
		return hca.QPAttr{}, refused("query_qp", q.num.String(), err)
	}
	defer q.leave()
	return q.query()
}

func (q *QP) query() (hca.QPAttr, error) {
	a, err := q.queryRaw()
	if err != nil {
		return hca.QPAttr{}, err
	}
	return hca.QPAttr{
		State: hca.QPState(a.qp_state), CurState: hca.QPState(a.qp_state),
		PKeyIndex: uint16(a.pkey_index), Port: uint8(a.port_num), QKey: hca.QKey(a.qkey), SQPSN: uint32(a.sq_psn),
	}, nil
}

func (q *QP) queryRaw() (a C.struct_ibv_qp_attr, err error) {
	const all = hca.AttrState | hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey | hca.AttrSQPSN
	err = failed("query_qp", q.num.String(), errno(C.shim_query_qp(q.qp, &a, C.int(all))))
	return a, err
}
