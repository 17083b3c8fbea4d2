//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"ipoibd/hca"
)

// Modify implements [hca.QP]. The arguments are checked here, since drivers are
// lenient: rxe takes a CurState that is not the current one, and any P_Key index.
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
	if cur.State == hca.QPReset && attr.State == hca.QPErr {
		if err := q.leaveReset(); err != nil {
			return err
		}
	}
	return q.move(cur.State, &attr, mask)
}

// allowed goes by the table of the contract, which wants the state named.
func allowed(cur hca.QPState, attr *hca.QPAttr, mask hca.QPAttrMask) bool {
	switch {
	case mask&hca.AttrState == 0, mask&hca.AttrCurState != 0 && attr.CurState != cur:
		return false
	}
	return hca.UDTransition(cur, attr.State).Check(mask)
}

// checkPKey refuses an index that the port's table does not have.
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

// leaveReset goes to INIT, from where Linux lets a QP go to ERR: its table
// (qp_state_table in drivers/infiniband/core/verbs.c) lacks RESET -> ERR.
func (q *QP) leaveReset() error {
	init := hca.QPAttr{State: hca.QPInit, Port: 1}
	return q.modify(&init, hca.AttrState|hca.UDTransition(hca.QPReset, hca.QPInit).Required)
}

// move makes an allowed transition. On the way to RESET no post is under way,
// and none is let in: what it puts into a queue after the kernel emptied it
// would be carried out later.
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

// gate lets posts in as a state does, once none of before is under way.
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
	const all = hca.AttrState | hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey | hca.AttrSQPSN
	var a C.struct_ibv_qp_attr
	if err := failed("query_qp", q.num.String(), errno(C.shim_query_qp(q.qp, &a, C.int(all)))); err != nil {
		return hca.QPAttr{}, err
	}
	return hca.QPAttr{
		State: hca.QPState(a.qp_state), CurState: hca.QPState(a.qp_state),
		PKeyIndex: uint16(a.pkey_index), Port: uint8(a.port_num), QKey: hca.QKey(a.qkey), SQPSN: uint32(a.sq_psn),
	}, nil
}
