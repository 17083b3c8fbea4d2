package softqp

import (
	"net/netip"

	"ipoibd/hca"
)

// sendSide is the state that only the send side writes.
type sendSide struct {
	state hca.QPState
	queue queue[sendReq]
	done  []hca.WC
	psn   uint32 // of the next datagram
	fan   fan    // of the request at the head
}

// fan is the progress of a request's replication.
type fan struct {
	peers []netip.Addr // the peers when it started; nil before
	next  int          // index of the first peer that no copy was sent to
}

type sendReq struct {
	id    uint64
	flags hca.SendFlags
	qpn   hca.QPN
	qkey  hca.QKey
	ah    hca.AHSpec
	n     int
	sge   [MaxSGE]hca.SGE
}

// becomeSend is the only function that writes the state of the send side.
func (q *QP) becomeSend(s hca.QPState) {
	q.send.state = s
	switch s.SendQueue() {
	case hca.QueueFlushes:
		for q.send.queue.len() > 0 {
			q.completeSend(q.send.queue.at(0).id, hca.WCWRFlushErr)
			q.dropHead()
		}
	case hca.QueueRefuses:
		q.send.queue.clear()
		q.send.fan = fan{}
		q.send.done = q.send.done[:0]
	case hca.QueueHolds, hca.QueueRuns:
	}
}

// PostSend queues a send to ah, or flushes it if the state requires that. Errors:
// hca.ErrInvalid, hca.ErrQueueFull. Send side.
func (q *QP) PostSend(wr *hca.SendWR, ah *hca.AHSpec) error {
	behaviour := q.send.state.SendQueue()
	switch {
	case behaviour == hca.QueueRefuses, len(wr.SGList) > q.cfg.Spec.SendSGEs,
		wr.Flags&hca.SendIPCsum != 0, wr.LSO.MSS != 0, wr.UD.QPN&^hca.QPNMask != 0:
		return hca.ErrInvalid
	case behaviour == hca.QueueFlushes:
		q.completeSend(wr.ID, hca.WCWRFlushErr)
		return nil
	case q.send.queue.full():
		return hca.ErrQueueFull
	}
	r := q.send.queue.push()
	r.id, r.flags = wr.ID, wr.Flags
	r.qpn, r.qkey, r.ah = wr.UD.QPN, wr.UD.QKey, *ah
	r.n = copy(r.sge[:], wr.SGList)
	return nil
}

// Finish reports that the first n datagrams of b, the batch of the last Fill, were sent.
// It completes their requests and sets b.Skipped. If all were sent, it also completes the
// tail. The shell must have held the send side since Fill. Send side.
func (q *QP) Finish(b *Batch, n int) {
	for i := range n {
		d := &b.datagrams[i]
		switch {
		case d.ends:
			q.succeed()
		case d.next > 0:
			q.send.fan = fan{b.peers, d.next}
			b.Skipped += d.skipped
		}
	}
	q.send.psn = (q.send.psn + uint32(n)) & psnMask
	if n == b.n {
		b.Skipped += b.skipped
		q.finishTail(b)
	}
}

func (q *QP) finishTail(b *Batch) {
	switch b.Tail {
	case TailNone:
	case TailLoop, TailDrop:
		q.succeed()
	case TailFail:
		q.fail(b.status)
	}
}

// succeed finishes the request at the head. It reports a completion only if one was
// requested.
func (q *QP) succeed() {
	r := q.send.queue.at(0)
	if q.cfg.Spec.SignalAll || r.flags&hca.SendSignaled != 0 {
		q.completeSend(r.id, hca.WCSuccess)
	}
	q.dropHead()
}

// fail completes the request at the head in error and stops the send queue.
func (q *QP) fail(status hca.WCStatus) {
	q.completeSend(q.send.queue.at(0).id, status)
	q.dropHead()
	q.becomeSend(hca.QPSQE)
}

func (q *QP) dropHead() {
	q.send.queue.pop()
	q.send.fan = fan{}
}

func (q *QP) completeSend(id uint64, status hca.WCStatus) {
	q.send.done = append(q.send.done, hca.WC{
		ID: id, Status: status, Opcode: hca.WCSend, QPN: q.cfg.Num,
	})
}

// SendDone returns and removes the send completions. The slice is valid until the next
// method of the send side. Send side.
func (q *QP) SendDone() []hca.WC {
	done := q.send.done
	q.send.done = done[:0]
	return done
}
