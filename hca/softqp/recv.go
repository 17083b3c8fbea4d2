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
			q.completeRecv(q.recv.queue.at(0).id, hca.WCWRFlushErr)
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
		q.completeRecv(wr.ID, hca.WCWRFlushErr)
		return nil
	case q.recv.queue.full():
		return hca.ErrQueueFull
	}
	r := q.recv.queue.push()
	r.id = wr.ID
	r.n = copy(r.sge[:], wr.SGList)
	return nil
}

// Deliver writes the message to the receive at the head of the queue or, with large receives,
// joins it to the open one or writes it to the one posted last. A failure (FailRecvLength,
// FailRecvAccess) moves the receive side to ERR; the shell must then lock both sides and call
// Settle. Receive side.
func (q *QP) Deliver(env *Env, in *Inbound) Reason {
	switch {
	case q.recv.state.RecvQueue() != hca.QueueRuns:
		return DropQPState
	case !env.PKey(q.keys.pkeyIndex).Match(in.PKey):
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
	r := q.recv.take(q.cfg.Spec.LRO)
	if reason, status := q.place(env.Memory, r, in); reason != Passed {
		q.completeRecv(r.id, status)
		q.becomeRecv(hca.QPErr)
		q.recv.unsettled = true
		return reason
	}
	wc := q.completeRecv(r.id, hca.WCSuccess)
	wc.Flags, wc.ByteLen = hca.WCFlagGRH, uint32(hca.GRHLen+in.Len)
	wc.SrcQPN, wc.PKeyIndex = in.SrcQPN, q.keys.pkeyIndex
	wc.Network = hca.NetworkIPv6 // the header that place has written to the GRH area
	if in.Path.Dst.Is4() {
		wc.Network = hca.NetworkIPv4
	}
	if q.cfg.Spec.LRO {
		q.recv.large.start(in, q.recv.place.list(), q.cfg.Spec.LROUDP)
	}
	return Passed
}

// closeLarge closes the open large receive, if there is one. Its completion is the last one in
// done.
func (q *QP) closeLarge() {
	if q.recv.large.open {
		q.recv.large.finish(&q.recv.done[len(q.recv.done)-1])
	}
}

// take removes the receive to use next: the oldest one or, if newest is set, the one posted
// last, whose memory is most likely still in the processor's cache.
func (r *recvSide) take(newest bool) *recvReq {
	if newest {
		return r.queue.popNewest()
	}
	oldest := r.queue.at(0)
	r.queue.pop()
	return oldest
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

// completeRecv adds a completion and returns it, valid until the next one.
func (q *QP) completeRecv(id uint64, status hca.WCStatus) *hca.WC {
	q.recv.done = append(q.recv.done, hca.WC{})
	wc := &q.recv.done[len(q.recv.done)-1]
	wc.ID, wc.Status, wc.Opcode, wc.QPN = id, status, hca.WCRecv, q.cfg.Num
	return wc
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
