package softqp

import (
	"fmt"

	"ipoibd/hca"
)

// psnMask is a packet sequence number's 24 bits (IBA 9.2).
const psnMask = 0xffffff

// Config is what a QP is made from.
type Config struct {
	Num  hca.QPN
	PD   uint32
	Spec hca.QPSpec // lists of at most MaxSGE entries
}

// QP is a UD queue pair in the engine.
type QP struct {
	cfg  Config
	keys keys // written by both sides together, read by either
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

// Config returns what the QP was made from.
func (q *QP) Config() Config { return q.cfg }

// state is the QP's one state: the receive side knows of ERR first, the send
// side of SQE. Both sides.
func (q *QP) state() hca.QPState {
	if q.recv.state == hca.QPErr {
		return hca.QPErr
	}
	return q.send.state
}

// Query returns the attributes in force. Both sides.
func (q *QP) Query() hca.QPAttr {
	s := q.state()
	return hca.QPAttr{
		State: s, CurState: s,
		PKeyIndex: q.keys.pkeyIndex, Port: q.keys.port, QKey: q.keys.qkey,
		SQPSN: q.send.psn,
	}
}

// Modify moves the QP and sets attributes, all or nothing; hca.ErrInvalid for
// what the state table or the device does not have. Moving to ERR leaves flush
// completions on both sides; moving to RESET drops requests and completions not
// yet taken. Both sides.
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
		q.send.psn = a.SQPSN
	}
}

// become moves both sides.
func (q *QP) become(s hca.QPState) {
	q.becomeSend(s)
	q.becomeRecv(s)
	if s == hca.QPReset {
		q.keys = keys{}
		q.send.psn = 0
	}
}

// Reset moves the QP to RESET, as a Modify would. Both sides.
func (q *QP) Reset() { q.become(hca.QPReset) }

// Settle carries a receive error over to the send side. Both sides.
func (q *QP) Settle() {
	if q.recv.unsettled {
		q.recv.unsettled = false
		q.becomeSend(hca.QPErr)
	}
}
