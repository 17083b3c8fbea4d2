package softqp

import (
	"ipoibd/hca"
	"ipoibd/hca/roce"
)

// recvSide is the state that only the receive side writes.
type recvSide struct {
	state     hca.QPState
	queue     queue[recvReq]
	done      []hca.WC
	grh       [hca.GRHLen]byte
	place     pieces
	large     large
	unsettled bool // the receive side has failed, and Settle has not yet moved the send side
}

type recvReq struct {
	id  uint64
	n   int
	sge [MaxSGE]hca.SGE
}

// Inbound is a UD message that was received or looped back.
type Inbound struct {
	Path     roce.Path
	TOS, TTL uint8
	UDPLen   int // bytes from the BTH to the ICRC
	DestQPN  hca.QPN
	SrcQPN   hca.QPN
	PKey     hca.PKey
	QKey     hca.QKey
	Payload  [][]byte // the message in pieces
	Len      int      // bytes of Payload
}

// becomeRecv is the only function that writes the state of the receive side.
func (q *QP) becomeRecv(s hca.QPState) {
	q.closeLarge()
	q.recv.state = s
	q.recv.unsettled = false
	switch s.RecvQueue() {
	case hca.QueueFlushes:
		for ; q.recv.queue.len() > 0; q.recv.queue.pop() {
			q.completeRecv(hca.WC{ID: q.recv.queue.at(0).id, Status: hca.WCWRFlushErr})
		}
	case hca.QueueRefuses:
		q.recv.queue.clear()
		q.recv.done = q.recv.done[:0]
	case hca.QueueHolds, hca.QueueRuns:
	}
}

// PostRecv queues a receive, or flushes it if the state requires that. Errors:
// hca.ErrInvalid, hca.ErrQueueFull. Receive side.
func (q *QP) PostRecv(wr *hca.RecvWR) error {
	behaviour := q.recv.state.RecvQueue()
	switch {
	case behaviour == hca.QueueRefuses, len(wr.SGList) > q.cfg.Spec.RecvSGEs:
		return hca.ErrInvalid
	case behaviour == hca.QueueFlushes:
		q.completeRecv(hca.WC{ID: wr.ID, Status: hca.WCWRFlushErr})
		return nil
	case q.recv.queue.full():
		return hca.ErrQueueFull
	}
	r := q.recv.queue.push()
	r.id = wr.ID
	r.n = copy(r.sge[:], wr.SGList)
	return nil
}

// Deliver writes the message to the receive at the head of the queue. A failure
// (FailRecvLength, FailRecvAccess) moves the receive side to ERR; the shell must then
// lock both sides and call Settle. Receive side.
func (q *QP) Deliver(env *Env, in *Inbound) Reason {
	switch {
	case q.recv.state.RecvQueue() != hca.QueueRuns:
		return DropQPState
	case !env.pkey(q.keys.pkeyIndex).Match(in.PKey):
		return DropPKey
	case q.keys.qkey != in.QKey:
		return DropQKey
	case q.recv.large.open && q.recv.large.join(in):
		return Passed
	}
	q.closeLarge()
	if q.recv.queue.len() == 0 {
		return DropNoRecv
	}
	r := q.recv.queue.at(0)
	q.recv.queue.pop()
	if reason, status := q.place(env.Memory, r, in); reason != Passed {
		q.completeRecv(hca.WC{ID: r.id, Status: status})
		q.becomeRecv(hca.QPErr)
		q.recv.unsettled = true
		return reason
	}
	network := hca.NetworkIPv6 // the header that place has written to the GRH area
	if in.Path.Dst.Is4() {
		network = hca.NetworkIPv4
	}
	wc := hca.WC{
		ID: r.id, Flags: hca.WCFlagGRH, ByteLen: uint32(hca.GRHLen + in.Len),
		SrcQPN: in.SrcQPN, PKeyIndex: q.keys.pkeyIndex, Network: network,
	}
	if !q.cfg.Spec.LRO || !q.recv.large.start(in, wc, q.recv.place.list(), q.cfg.Spec.LROUDP) {
		q.completeRecv(wc)
	}
	return Passed
}

// closeLarge completes the receive that messages are being joined in, if there is one.
func (q *QP) closeLarge() {
	if q.recv.large.open {
		q.completeRecv(q.recv.large.finish())
	}
}

// place writes the GRH area and the payload to the memory of r.
func (q *QP) place(m *Memory, r *recvReq, in *Inbound) (Reason, hca.WCStatus) {
	p := &q.recv.place
	if !p.find(m, q.cfg.PD, r.sge[:r.n], true) {
		return FailRecvAccess, hca.WCLocProtErr
	}
	if p.size < hca.GRHLen+in.Len {
		return FailRecvLength, hca.WCLocLenErr
	}
	roce.PutGRH(q.recv.grh[:], &in.Path, in.TOS, in.TTL, in.UDPLen)
	s := scatter{dst: p.list()}
	s.write(q.recv.grh[:])
	for _, b := range in.Payload {
		s.write(b)
	}
	return Passed, hca.WCSuccess
}

func (q *QP) completeRecv(wc hca.WC) {
	wc.Opcode = hca.WCRecv
	wc.QPN = q.cfg.Num
	q.recv.done = append(q.recv.done, wc)
}

// RecvDone returns and removes the receive completions. The slice is valid until the next
// method of the receive side. After a receive error it is empty until Settle, so that a
// caller who sees a completion finds the send side in ERR as well. Receive side.
func (q *QP) RecvDone() []hca.WC {
	if q.recv.unsettled {
		return nil
	}
	q.closeLarge()
	done := q.recv.done
	q.recv.done = done[:0]
	return done
}
