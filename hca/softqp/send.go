package softqp

import (
	"net/netip"

	"ipoibd/hca"
	"ipoibd/hca/segment"
)

// sendSide is the state that only the send side writes.
type sendSide struct {
	state hca.QPState
	queue queue[sendReq]
	done  []hca.WC
	at    progress // of the request at the head
}

// progress is the point up to which a request was sent.
type progress struct {
	peers []netip.Addr // of a replication, when it started
	next  int          // index of the first peer to which no copy of the segment was sent
	seg   int          // segment of a large send
}

type sendReq struct {
	id    uint64
	flags hca.SendFlags
	qpn   hca.QPN
	qkey  hca.QKey
	ah    hca.AHSpec
	n     int
	sge   [MaxSGE]hca.SGE
	large bool         // a large send
	plan  segment.Plan // of a large send
}

// messages returns how many messages a request becomes.
func (r *sendReq) messages() int {
	if r.large {
		return r.plan.Segments()
	}
	return 1
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
		q.send.at = progress{}
		q.send.done = q.send.done[:0]
	case hca.QueueHolds, hca.QueueRuns:
	}
}

// MaxTSO bounds the payload of a large send. The longest frame of a TAP, 64 KiB, has less.
const MaxTSO = 1 << 16

// The contract's limit is the segmenter's.
var (
	_ [segment.MaxHeader - hca.MaxLSOHeader]struct{}
	_ [hca.MaxLSOHeader - segment.MaxHeader]struct{}
)

// PostSend queues a send to ah, or flushes it if the state requires that. Errors:
// hca.ErrInvalid, hca.ErrQueueFull. Send side.
func (q *QP) PostSend(wr *hca.SendWR, ah *hca.AHSpec) error {
	behaviour := q.send.state.SendQueue()
	switch {
	case behaviour == hca.QueueRefuses, len(wr.SGList) > q.cfg.Spec.SendSGEs,
		wr.UD.QPN&^hca.QPNMask != 0:
		return hca.ErrInvalid
	case behaviour == hca.QueueFlushes:
		q.completeSend(wr.ID, hca.WCWRFlushErr)
		return nil
	case q.send.queue.full():
		return hca.ErrQueueFull
	}
	r := q.send.queue.at(q.send.queue.len()) // push returns it later
	if r.large = wr.LSO.MSS != 0; r.large {
		n := 0
		for i := range wr.SGList {
			n += int(wr.SGList[i].Length)
		}
		if n > MaxTSO || r.plan.Cut(wr.LSO.Header, hca.EncapLen, n, wr.LSO.MSS) != nil ||
			r.plan.Segments() > hca.MaxLSOSegments {
			return hca.ErrInvalid
		}
	}
	q.send.queue.push()
	r.id, r.flags = wr.ID, wr.Flags
	r.qpn, r.qkey, r.ah = wr.UD.QPN, wr.UD.QKey, *ah
	r.n = copy(r.sge[:], wr.SGList)
	return nil
}

// Unsent returns how many requests wait to be sent. Send side.
func (q *QP) Unsent() int { return q.send.queue.len() }

// Finish reports that the first n trains of b, the batch of the last Fill, were sent. It
// completes their requests and sets b.Skipped. If all were sent, it also processes the tail.
// The shell must have held the send side since Fill. Send side.
func (q *QP) Finish(b *Batch, n int) {
	sent := 0
	if n > 0 {
		sent = b.trains[n-1].end
	}
	for i := range b.datagrams[:sent] {
		q.advance(b, &b.datagrams[i])
	}
	if n < b.numTrains {
		unsent := b.datagrams[sent:b.n]
		q.cfg.PSNs.giveBack(unsent[0].psn, len(unsent))
		return
	}
	b.Skipped += b.skipped
	switch b.Tail {
	case TailNone:
	case TailDrop:
		q.succeed()
	case TailLoop:
		q.advance(b, &b.after)
	case TailFail:
		q.fail(b.status)
	}
}

// advance records that a datagram was sent or looped back.
func (q *QP) advance(b *Batch, d *datagram) {
	b.Skipped += d.skipped
	switch {
	case d.ends:
		q.succeed()
	case d.resumes:
		q.send.at = progress{peers: b.peers, seg: d.seg, next: d.next}
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
	q.send.at = progress{}
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
