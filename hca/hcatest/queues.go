package hcatest

import (
	"fmt"
	"slices"
	"time"

	"ipoibd/hca"
)

var queueChecks = []check{
	{name: "queues/refused", run: queuesRefused},
	{name: "queues/own_completions", run: queuesOwnCompletions, needs: manyQueues},
	{name: "queues/flush", run: queuesFlush, needs: manyQueues},
	{name: "queues/reset", run: queuesReset, needs: manyQueues},
	{name: "queues/receive_error", run: queuesReceiveError, needs: func(f Features, h Host) bool {
		return manyQueues(f, h) && f.ShortRecvIsErr
	}},
	{name: "queues/send_error", run: queuesSendError, needs: func(f Features, h Host) bool {
		return manyQueues(f, h) && f.ChecksProtection && f.SendErrorIsSQE
	}},
	{name: "queues/multicast", run: queuesMulticast, needs: func(f Features, h Host) bool {
		return manyQueues(f, h) && hasGroup(f, h)
	}},
	{name: "queues/senders", run: queuesSenders, needs: manyQueues},
	{name: "queues/busy", run: queuesBusy, needs: manyQueues},
}

func manyQueues(_ Features, h Host) bool { return h.Dev.Attr().MaxQueues > 1 }

// A number of queues outside 0 to DeviceAttr.MaxQueues is refused, as is one that differs
// from the number of pairs of CQs.
func queuesRefused(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	most := b.a.Dev.Attr().MaxQueues
	if most < 1 {
		b.Errorf("%d queues at most", most)
	}
	for _, n := range []int{-1, 2, most + 1} { // CreateQP has the CQs of one queue
		s := defaultSpec().qp
		s.Queues = n
		_, err := e.pd.CreateQP(s, e.send, e.recv)
		b.wantErr(err, hca.ErrInvalid, fmt.Sprintf("create QP with %d queues", n))
	}
	for _, c := range []struct{ queues, pairs int }{{0, 0}, {1, 2}, {2, 1}, {most + 1, most + 1}} {
		s := defaultSpec().qp
		s.Queues = c.queues
		var cqs []hca.CQPair
		for range c.pairs {
			cqs = append(cqs, hca.CQPair{Send: b.cq(b.a, depth), Recv: b.cq(b.a, depth)})
		}
		_, _, err := hca.CreateQueues(e.pd, s, cqs)
		b.wantErr(err, hca.ErrInvalid, fmt.Sprintf("create QP with %d queues and %d pairs of CQs", c.queues, c.pairs))
	}
	for _, n := range []int{0, 1} {
		s := defaultSpec().qp
		s.Queues = n
		qp, queues, err := hca.CreateQueues(e.pd, s, []hca.CQPair{{Send: e.send, Recv: e.recv}})
		must(b, err, "create QP with one queue")
		b.closeLater(qp, "QP with one queue")
		if len(queues) != 1 || queues[0] != hca.Queue(qp) {
			b.Errorf("queues %v of %v", queues, qp)
		}
	}
}

// newQueues returns ends of one QP with as many queues as possible, one end for each.
func (b *bench) newQueues(to hca.QPState) []*end {
	b.Helper()
	first := b.newEnd(b.a, defaultSpec())
	var ends []*end
	var cqs []hca.CQPair
	for range b.a.Dev.Attr().MaxQueues {
		e := *first
		e.send, e.recv = b.cq(b.a, depth), b.cq(b.a, depth)
		e.tx, e.rx = e.memory(depth*slotSize, 0), e.memory(depth*slotSize, hca.AccessLocalWrite)
		ends = append(ends, &e)
		cqs = append(cqs, hca.CQPair{Send: e.send, Recv: e.recv})
	}
	s := defaultSpec().qp
	s.Queues = len(ends)
	qp, queues, err := hca.CreateQueues(first.pd, s, cqs)
	must(b, err, "create QP with all queues")
	b.closeLater(qp, "QP with all queues")
	for i, e := range ends {
		if queues[i].Num() != qp.Num() || queues[i].Spec() != s {
			b.Errorf("queue %d has number %v and spec %+v", i, queues[i].Num(), queues[i].Spec())
		}
		e.qp = queueQP{qp, queues[i]}
	}
	ends[0].to(to)
	return ends
}

// queueQP is a QP whose posts go to one of its queues.
type queueQP struct {
	hca.QP
	queue hca.Queue
}

func (q queueQP) PostSend(wrs []hca.SendWR) (int, error) { return q.queue.PostSend(wrs) }
func (q queueQP) PostRecv(wrs []hca.RecvWR) (int, error) { return q.queue.PostRecv(wrs) }

// All queues send and receive through one QPN, and each completes on its own CQs. A message
// that the QP sends to itself arrives at the queue from which it was sent.
func queuesOwnCompletions(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	for i, e := range ends {
		e.postRecv(2)
		e.postSend(e.wr(uint64(70+i), e, e.message(0, []byte{byte(i)})))
		e.wantStatus(e.next(e.send, 1), hca.WCSuccess, uint64(70+i))
		wc := e.next(e.recv, 1)[0]
		if wc.SrcQPN != e.qp.Num() || wc.QPN != e.qp.Num() || e.rx.Bytes()[hca.GRHLen] != byte(i) {
			b.Errorf("queue %d: %+v", i, wc)
		}
	}
	peer := b.newEnd(b.b, defaultSpec())
	peer.to(hca.QPRTS)
	peer.postRecv(len(ends))
	for i, e := range ends {
		e.postSend(e.wr(uint64(i), peer, e.message(0, []byte("x"))))
		e.next(e.send, 1)
		if wc := peer.next(peer.recv, 1)[0]; wc.SrcQPN != e.qp.Num() {
			b.Errorf("queue %d: its message comes from %v, want %v", i, wc.SrcQPN, e.qp.Num())
		}
	}
	for i, e := range ends {
		e.wantNone(e.send)
		if _, err := e.recv.Poll(nil); err != nil {
			b.Errorf("queue %d: %v", i, err)
		}
	}
}

// Moving to ERR flushes each queue to its own CQs.
func queuesFlush(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	for i, e := range ends {
		e.postRecv(i + 1)
	}
	must(b, ends[0].step(hca.QPRTS, hca.QPErr), "to ERR")
	for i, e := range ends {
		for _, wc := range e.next(e.recv, i+1) {
			if wc.Status != hca.WCWRFlushErr {
				b.Errorf("queue %d: %+v", i, wc)
			}
		}
		e.wantNone(e.recv)
	}
}

// A reset drops the requests of every queue, and leaves no completion.
func queuesReset(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	for _, e := range ends {
		e.postRecv(3)
	}
	must(b, ends[0].step(hca.QPRTS, hca.QPReset), "to RESET")
	for _, e := range ends {
		e.wantNone(e.recv)
	}
	ends[0].to(hca.QPRTS)
	for _, e := range ends {
		e.postRecv(depth) // all of the queue is free
		e.postSend(e.wr(1, e, e.message(0, []byte("again"))))
		e.next(e.recv, 1)
	}
}

// The CQs of every queue are in use until the QP is closed.
func queuesBusy(b *bench) {
	ends := b.newQueues(hca.QPInit)
	for _, e := range ends {
		b.wantErr(e.send.Close(), hca.ErrBusy, "close send CQ")
		b.wantErr(e.recv.Close(), hca.ErrBusy, "close receive CQ")
	}
	must(b, ends[0].qp.Close(), "close QP")
	for _, e := range ends {
		must(b, e.send.Close(), "close send CQ")
		must(b, e.recv.Close(), "close receive CQ")
	}
}

// failEach calls f for each queue, with receives posted to the others, and brings the QP up again.
func (b *bench) failEach(ends []*end, f func(failing *end)) {
	b.Helper()
	for i, failing := range ends {
		for _, e := range ends {
			if e != failing {
				e.postRecv(2)
			}
		}
		f(failing)
		must(b, ends[0].step(ends[0].state(), hca.QPReset), fmt.Sprintf("queue %d: to RESET", i))
		ends[0].to(hca.QPRTS)
	}
}

// A receive that is too short moves the whole QP to ERR, whichever queue it belongs to.
func queuesReceiveError(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	b.failEach(ends, func(failing *end) {
		short := hca.RecvWR{ID: 50, SGList: []hca.SGE{failing.rx.SGE(0, hca.GRHLen)}}
		if n, err := failing.qp.PostRecv([]hca.RecvWR{short, failing.recvWR(1)}); n != 2 {
			b.Fatalf("post receive: %v", err)
		}
		failing.postSend(failing.wr(1, failing, failing.message(0, []byte("12345"))))
		failing.next(failing.send, 1)
		if got := failing.status(failing.next(failing.recv, 2), 50, 1); got[1] != hca.WCWRFlushErr {
			b.Errorf("%v", got)
		}
		failing.wantState(hca.QPErr)
		for _, e := range ends {
			if e != failing {
				for _, wc := range e.next(e.recv, 2) {
					if wc.Status != hca.WCWRFlushErr {
						b.Errorf("another queue: %+v", wc)
					}
				}
			}
			e.postSend(e.wr(8, e, e.message(0, []byte("x"))))
			e.wantStatus(e.next(e.send, 1), hca.WCWRFlushErr, 8)
		}
	})
}

// A send that fails stops the sends of all queues until the QP is repaired, and no receives.
func queuesSendError(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	b.failEach(ends, func(failing *end) {
		failing.postRecv(2)
		failing.breakSend()
		failing.wantState(hca.QPSQE)
		for _, e := range ends {
			e.postSend(e.wr(8, e, e.message(0, []byte("x"))))
			e.wantStatus(e.next(e.send, 1), hca.WCWRFlushErr, 8)
			e.wantNone(e.recv)
		}
		must(b, failing.step(hca.QPSQE, hca.QPRTS), "to RTS")
		for _, e := range ends {
			e.postSend(e.wr(9, e, e.message(0, []byte("again"))))
			e.wantStatus(e.next(e.send, 1), hca.WCSuccess, 9)
			e.wantText("again")
		}
	})
}

// Exactly one queue receives a multicast message.
func queuesMulticast(b *bench) {
	ends := b.newQueues(hca.QPRTS)
	for _, e := range ends {
		e.postRecv(2)
	}
	ends[0].join()
	peer := b.newEnd(b.b, defaultSpec())
	peer.to(hca.QPRTS)
	peer.sendGroup("to all")
	if texts := b.allReceived(ends, 1); texts[0] != "to all" {
		b.Errorf("received %q", texts)
	}
}

// allReceived returns n messages, which must arrive at one queue, in order.
func (b *bench) allReceived(ends []*end, n int) (texts []string) {
	b.Helper()
	var at *end
	for end := time.Now().Add(b.f.patience()); at == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		for _, e := range ends {
			wc := make([]hca.WC, 1)
			if k, err := e.recv.Poll(wc); err != nil {
				b.Fatal(err)
			} else if k == 1 {
				at, texts = e, append(texts, string(e.received(wc[0])))
				break
			}
		}
	}
	if at == nil {
		b.Fatal("no queue received a message")
	}
	for len(texts) < n {
		texts = append(texts, string(at.received(at.next(at.recv, 1)[0])))
	}
	for _, e := range ends {
		e.wantNone(e.recv)
	}
	return texts
}

// The messages of one sender arrive at one queue, in order. A queue of another QP is a sender
// of its own.
func queuesSenders(b *bench) {
	const messages = 8
	ends := b.newQueues(hca.QPRTS)
	bench := *b
	bench.a, bench.b = b.b, b.a
	for k, peer := range bench.newQueues(hca.QPRTS) {
		for _, e := range ends {
			e.postRecv(messages)
		}
		var want []string
		for i := range messages {
			text := fmt.Sprintf("%d from queue %d", i, k)
			want = append(want, text)
			peer.postSend(peer.wr(uint64(i), ends[0], peer.message(i, []byte(text))))
		}
		peer.next(peer.send, messages)
		if got := b.allReceived(ends, messages); !slices.Equal(got, want) {
			b.Errorf("received %q, want %q", got, want)
		}
		must(b, ends[0].step(hca.QPRTS, hca.QPReset), "to RESET")
		ends[0].to(hca.QPRTS)
	}
}
