package softqp

import (
	"fmt"

	"ipoibd/hca"
)

// Config is the data that a QP is created from.
type Config struct {
	Num  hca.QPN
	PD   uint32
	Spec hca.QPSpec // lists of at most MaxSGE entries
	PSNs *PSNs      // shared by the queues of a queue pair
}

// QP is a UD queue pair in the engine.
type QP struct {
	cfg  Config
	keys keys // written while both sides are locked, read by either side
	send sendSide
	recv recvSide
}

// keys are the attributes that both sides read.
type keys struct {
	pkeyIndex uint16
	port      uint8
	qkey      hca.QKey
}

// New returns a QP in RESET.
func New(cfg Config) *QP {
	return &QP{
		cfg:  cfg,
		send: sendSide{queue: newQueue[sendReq](cfg.Spec.SendWRs)},
		recv: recvSide{queue: newQueue[recvReq](cfg.Spec.RecvWRs)},
	}
}

// state returns the state of the QP as a whole: ERR if the receive side is in ERR, else
// the state of the send side. Both sides.
func (q *QP) state() hca.QPState {
	if q.recv.state == hca.QPErr {
		return hca.QPErr
	}
	return q.send.state
}

// Query returns the current attributes. Both sides.
func (q *QP) Query() hca.QPAttr {
	s := q.state()
	return hca.QPAttr{
		State: s, CurState: s,
		PKeyIndex: q.keys.pkeyIndex, Port: q.keys.port, QKey: q.keys.qkey,
		SQPSN: q.cfg.PSNs.value(),
	}
}

// Modify changes the state and attributes, all or nothing. It returns hca.ErrInvalid for
// a transition that the state table does not allow, and for an attribute value that the
// device does not support. Moving to ERR leaves flush completions on both sides. Moving
// to RESET drops requests, and completions that SendDone and RecvDone have not returned.
// Both sides.
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask, env *Env) error {
	if err := q.check(&attr, mask, env); err != nil {
		return err
	}
	q.assign(&attr, mask)
	q.become(attr.State)
	return nil
}

func (q *QP) check(a *hca.QPAttr, mask hca.QPAttrMask, env *Env) error {
	from := q.state()
	has := func(bit hca.QPAttrMask) bool { return mask&bit != 0 }
	switch {
	case !has(hca.AttrState) || !hca.UDTransition(from, a.State).Check(mask):
		return fmt.Errorf("%w: %v to %v with mask %#x", hca.ErrInvalid, from, a.State, uint32(mask))
	case has(hca.AttrCurState) && a.CurState != from:
		return fmt.Errorf("%w: state is %v, not %v", hca.ErrInvalid, from, a.CurState)
	case has(hca.AttrPKeyIndex) && int(a.PKeyIndex) >= len(env.PKeys):
		return fmt.Errorf("%w: P_Key index %d", hca.ErrInvalid, a.PKeyIndex)
	case has(hca.AttrPort) && a.Port != 1:
		return fmt.Errorf("%w: port %d", hca.ErrInvalid, a.Port)
	case has(hca.AttrSQPSN) && a.SQPSN > psnMask:
		return fmt.Errorf("%w: PSN %#x", hca.ErrInvalid, a.SQPSN)
	}
	return nil
}

func (q *QP) assign(a *hca.QPAttr, mask hca.QPAttrMask) {
	if mask&hca.AttrPKeyIndex != 0 {
		q.keys.pkeyIndex = a.PKeyIndex
	}
	if mask&hca.AttrPort != 0 {
		q.keys.port = a.Port
	}
	if mask&hca.AttrQKey != 0 {
		q.keys.qkey = a.QKey
	}
	if mask&hca.AttrSQPSN != 0 {
		q.cfg.PSNs.set(a.SQPSN)
	}
}

// become moves both sides.
func (q *QP) become(s hca.QPState) {
	q.becomeSend(s)
	q.becomeRecv(s)
	if s == hca.QPReset {
		q.keys = keys{}
		q.cfg.PSNs.set(0)
	}
}

// Reset moves the QP to RESET, like Modify. Both sides.
func (q *QP) Reset() { q.become(hca.QPReset) }

// Settle moves the send side to ERR after a receive error. Both sides.
func (q *QP) Settle() {
	if q.recv.unsettled {
		q.recv.unsettled = false
		q.becomeSend(hca.QPErr)
	}
}

// Follow moves the QP to an error state, SQE or ERR, that another queue of the same number has
// entered. It has no effect if the QP is already in that state or a worse one. Like Modify, it
// moves a QP in any state to ERR. Only RTS and SQD become SQE: only they have sends to flush.
// Both sides.
func (q *QP) Follow(s hca.QPState) {
	switch {
	case s == hca.QPErr && q.state() != hca.QPErr:
		q.become(hca.QPErr)
	case s == hca.QPSQE && (q.send.state == hca.QPRTS || q.send.state == hca.QPSQD):
		q.becomeSend(hca.QPSQE)
	}
}
