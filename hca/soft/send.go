package soft

import (
	"errors"
	"net/netip"
	"sync"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// A datagram of the engine must fit into a packet of the transport.

// sender is the transport's one sender at a time.
type sender struct {
	mu   sync.Mutex
	pkts [hca.Batch]transport.Packet
}

// PostSend implements [hca.QP]: it posts to the first queue.
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) { return q.queues[0].PostSend(wrs) }

// PostSend implements [hca.Queue]. It sends as much as the transport takes; the drain sends the
// rest.
func (q *queue) PostSend(wrs []hca.SendWR) (int, error) {
	if err := q.qp.usable(); err != nil {
		return 0, err
	}
	q.sendMu.Lock()
	n, err := q.queueSends(wrs)
	q.pump(false)
	q.sendMu.Unlock()
	q.lane.dev.settle()
	return n, err
}

func (q *queue) queueSends(wrs []hca.SendWR) (int, error) {
	for i := range wrs {
		ah, ok := wrs[i].UD.AH.(*AH)
		if !ok || ah.pd != q.qp.pd {
			return i, hca.ErrInvalid
		}
		if q.lane.dev.floods(&wrs[i], ah) {
			return i, hca.ErrInvalid
		}
		if err := q.core.PostSend(&wrs[i], &ah.spec); err != nil {
			return i, err
		}
		if f := q.qp.fast.Load(); f != nil {
			q.posted = append(q.posted, f.packetsOf(q, &wrs[i]))
		}
	}
	return len(wrs), nil
}

// maxCopies bounds the datagrams of a large send to a group that is replicated, which leave in
// one call. A message to the longest list of peers has as many.
const maxCopies = 1 << 14

// floods reports whether a large send is replicated to more than maxCopies datagrams.
func (d *Device) floods(wr *hca.SendWR, ah *AH) bool {
	if wr.LSO.MSS < 1 || d.cfg.Peers == nil || !ah.spec.DGID.Addr().IsMulticast() {
		return false
	}
	n := 0
	for i := range wr.SGList {
		n += int(wr.SGList[i].Length)
	}
	return (n/wr.LSO.MSS+1)*len(d.cfg.Peers()) > maxCopies
}

// maxBatches bounds what one pump sends, to 16,384 datagrams. Replicated multicast can be
// millions, and meanwhile the caller takes no completions and the QP cannot be changed.
const maxBatches = 256

// pump sends from the queue until it is empty, the transport is full, or much has been sent,
// and delivers the completions. If giveUp, sends that the transport does not accept are dropped
// instead. sendMu must be held.
func (q *queue) pump(giveUp bool) {
	for n := 0; !q.blocked && q.pumpBatch(giveUp); n++ {
		if n == maxBatches && !q.blocked {
			q.blocked = true
			q.lane.drain.add(q)
		}
	}
	if f := q.qp.fast.Load(); f != nil {
		f.sent(q)
	}
	q.sendCQ.push(q.core.SendDone())
}

// pumpBatch sends one batch. It returns false if the queue was empty.
func (q *queue) pumpBatch(giveUp bool) bool {
	l, b := q.lane, q.batch
	var peers []netip.Addr // that multicast is replicated to
	if cfg := &l.dev.cfg; cfg.Peers != nil {
		peers = cfg.Peers()
	}
	q.core.Fill(l.env.Load(), peers, softqp.Limits(l.wire.Limits()), b)
	ts := b.Trains()
	if len(ts) == 0 && b.Tail == softqp.TailNone {
		return false
	}
	n, full := l.transmit(ts)
	if giveUp && full {
		for i := range ts[n:] {
			l.counts.add(dropNoRoom, ts[n+i].Segs)
		}
		n = len(ts)
	}
	q.core.Finish(b, n)
	l.counts.add(dropPeerFamily, b.Skipped)
	switch {
	case n == len(ts):
		q.finishTail(b)
	case full:
		q.blocked = true
		l.drain.add(q)
	}
	return true
}

// finishTail counts the last send of a batch, or delivers it to this device.
func (q *queue) finishTail(b *softqp.Batch) {
	l := q.lane
	switch b.Tail {
	case softqp.TailFail:
		l.counts.engine(b.Reason)
		if len(q.qp.queues) > 1 || q.qp.fast.Load() != nil {
			l.dev.failing.Store(true) // the other queues and the fast path follow
		}
	case softqp.TailDrop:
		l.counts.engine(b.Reason)
	case softqp.TailLoop:
		l.counts.add(txLooped, 1)
		x := delivery{lane: l, from: q}
		x.dispatch(&b.Loop)
		x.release()
	case softqp.TailNone:
	}
}

// transmit passes trains to the transport and returns how many were sent or dropped. If some are
// left and the transport is not full, they must be built again, because its limits have changed.
func (l *lane) transmit(ts []softqp.Train) (n int, full bool) {
	if len(ts) == 0 {
		return 0, false
	}
	l.tx.mu.Lock()
	defer l.tx.mu.Unlock()
	pkts := l.tx.pkts[:len(ts)]
	for i := range ts {
		t := &ts[i]
		pkts[i] = transport.Packet{
			Src: t.Src, Dst: t.Dst, TOS: t.TOS, TTL: t.TTL,
			Data: t.Data, Segs: t.Segs, SegSize: t.SegSize,
		}
	}
	n, err := l.wire.Send(pkts)
	var sent, bytes, lost int
	for i := range ts {
		if i < n {
			sent, bytes = sent+ts[i].Segs, bytes+len(ts[i].Data)
		} else {
			lost += ts[i].Segs
		}
	}
	l.counts.add(txPackets, sent)
	l.counts.add(txBytes, bytes)
	switch {
	case err == nil:
		return n, true
	case errors.Is(err, transport.ErrLimits):
		return n, false
	}
	l.counts.add(dropTransport, lost)
	l.dev.lose()
	return len(ts), false
}
