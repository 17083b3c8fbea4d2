package hcatest

import "ipoibd/hca"

var postChecks = []check{
	{name: "post/refused_by_state", run: postRefused},
	{name: "post/list_too_long", run: postListTooLong},
	{name: "post/receive_queue_full", run: postRecvFull},
	{name: "post/send_queue_full", run: postSendFull},
	{name: "post/stalled_network", run: postStalled, needs: func(_ Features, h Host) bool { return h.Stall != nil }},
	{name: "post/init_holds_receives", run: postInitHolds},
	{name: "post/sqd_holds_sends", run: postSQDHolds},
	{name: "post/err_flushes", run: postErrFlushes},
	{name: "post/err_flushes_later_posts", run: postErrFlushesLater},
	{name: "post/reset_drops", run: postResetDrops},
	{name: "post/requests_may_be_reused", run: postReuse},
}

func postRefused(b *bench) {
	for _, s := range []hca.QPState{hca.QPReset, hca.QPInit, hca.QPRTR} {
		e := b.newEnd(b.a, defaultSpec())
		e.to(s)
		n, err := e.qp.PostSend([]hca.SendWR{e.wr(1, e, e.message(0, []byte("x")))})
		b.wantErr(err, hca.ErrInvalid, "post send in "+s.String())
		if n != 0 {
			b.Errorf("%d sends accepted in %v", n, s)
		}
	}
	e := b.newEnd(b.a, defaultSpec())
	_, err := e.qp.PostRecv([]hca.RecvWR{e.recvWR(0)})
	b.wantErr(err, hca.ErrInvalid, "post receive in RESET")
}

// A list longer than the QP's spec is refused; the requests before it are accepted.
func postListTooLong(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	ok := x.wr(1, y, x.message(0, []byte("before it")))
	bad := x.wr(2, y, x.tx.SGE(0, 1), x.tx.SGE(1, 1), x.tx.SGE(2, 1))
	n, err := x.qp.PostSend([]hca.SendWR{ok, bad, ok})
	b.wantErr(err, hca.ErrInvalid, "post send")
	x.wantStatus(x.next(x.send, n), hca.WCSuccess, 1)
	if got := string(y.received(y.next(y.recv, 1)[0])); got != "before it" {
		b.Errorf("received %q", got)
	}
	_, err = x.qp.PostRecv([]hca.RecvWR{{SGList: bad.SGList}})
	b.wantErr(err, hca.ErrInvalid, "post receive")
}

// A post to a queue without enough room accepts the part that fits.
func postRecvFull(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPRTR)
	var wrs []hca.RecvWR
	for i := range depth {
		wrs = append(wrs, e.recvWR(i))
	}
	taken := e.fillRecv(wrs)
	must(b, e.step(hca.QPRTR, hca.QPErr), "to ERR")
	if got := len(e.next(e.recv, taken)); got != taken {
		b.Errorf("%d completions of %d receives", got, taken)
	}
}

// fillRecv posts until the queue is full. A backend may have rounded its depth up to twice
// the requested one.
func (e *end) fillRecv(wrs []hca.RecvWR) int {
	e.Helper()
	for taken := 0; taken <= 3*depth; {
		n, err := e.qp.PostRecv(wrs)
		taken += n
		if n < len(wrs) {
			e.wantErr(err, hca.ErrQueueFull, "post receive")
			if taken < depth {
				e.Fatalf("full with %d of %d", taken, depth)
			}
			return taken
		}
	}
	e.Fatal("receive queue never full")
	return 0
}

// SQD holds sends, so the queue fills up.
func postSendFull(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPSQD)
	wr := e.wr(1, e, e.message(0, []byte("x")))
	for taken := 0; taken <= 3*depth; {
		n, err := e.qp.PostSend([]hca.SendWR{wr, wr, wr, wr, wr})
		taken += n
		if n < 5 {
			b.wantErr(err, hca.ErrQueueFull, "post send")
			if taken < depth {
				b.Errorf("full with %d of %d", taken, depth)
			}
			return
		}
	}
	b.Error("send queue never full")
}

// While the network is blocked, sends stay posted; afterwards they are sent in order.
func postStalled(b *bench) {
	x, y := b.pair()
	y.postRecv(depth)
	x.host.Stall(true)
	for i := range depth {
		x.postSend(x.wr(uint64(i), y, x.message(i, []byte{byte(i)})))
	}
	_, err := x.qp.PostSend([]hca.SendWR{x.wr(99, y, x.tx.SGE(0, 1))})
	b.wantErr(err, hca.ErrQueueFull, "post send")
	x.wantNone(x.send)
	x.host.Stall(false)
	for i, wc := range x.next(x.send, depth) {
		x.wantStatus([]hca.WC{wc}, hca.WCSuccess, uint64(i))
	}
	for i, wc := range y.next(y.recv, depth) {
		if got := y.received(wc); len(got) != 1 || got[0] != byte(i) {
			b.Fatalf("message %d is %v", i, got)
		}
	}
}

// Receives posted in INIT are used once the QP is in RTR.
func postInitHolds(b *bench) {
	x, y := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPInit)
	y.postRecv(1)
	must(b, y.step(hca.QPInit, hca.QPRTR), "to RTR")
	x.probe(y, "posted in INIT")
}

// Sends posted in SQD are sent in RTS; receives work in SQD.
func postSQDHolds(b *bench) {
	x, y := b.pair()
	x.postRecv(1)
	y.postRecv(1)
	must(b, x.step(hca.QPRTS, hca.QPSQD), "to SQD")
	x.postSend(x.wr(1, y, x.message(0, []byte("held"))))
	y.probe(x, "received in SQD")
	x.wantNone(x.send)
	x.resume(y)
	if got := string(y.received(y.next(y.recv, 1)[0])); got != "held" {
		b.Errorf("received %q", got)
	}
}

// resume moves the QP back to RTS, which sends request 1, held in SQD. If the backend does
// not resume by itself, resume posts a message that no QP accepts.
func (e *end) resume(to *end) {
	e.Helper()
	must(e, e.step(hca.QPSQD, hca.QPRTS), "back to RTS")
	want := []uint64{1}
	if !e.f.SQDResumes {
		wr := e.wr(2, to, e.message(1, nil))
		wr.UD.QKey++
		e.postSend(wr)
		want = append(want, 2)
	}
	e.wantStatus(e.next(e.send, len(want)), hca.WCSuccess, want...)
}

// ERR flushes the posted requests in order, including unsignaled sends.
func postErrFlushes(b *bench) {
	s := defaultSpec()
	s.qp.SignalAll = false
	e := b.newEnd(b.a, s)
	e.to(hca.QPSQD)
	e.postRecv(3)
	for i := range 3 {
		e.postSend(e.wr(uint64(i), e, e.message(i, []byte("x"))))
	}
	must(b, e.step(hca.QPSQD, hca.QPErr), "to ERR")
	e.wantStatus(e.next(e.recv, 3), hca.WCWRFlushErr, 0, 1, 2)
	e.wantStatus(e.next(e.send, 3), hca.WCWRFlushErr, 0, 1, 2)
}

func postErrFlushesLater(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPErr)
	if e.postRecv(2); b.f.LateRecvFlushes {
		e.wantStatus(e.next(e.recv, 2), hca.WCWRFlushErr, 0, 1)
	}
	e.postSend(e.wr(5, e, e.message(0, []byte("x"))))
	e.wantStatus(e.next(e.send, 1), hca.WCWRFlushErr, 5)
}

// RESET drops requests without completions, and completions not yet polled.
func postResetDrops(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPSQD)
	e.postRecv(3)
	e.postSend(e.wr(1, e, e.message(0, []byte("x"))))
	must(b, e.step(hca.QPSQD, hca.QPReset), "to RESET")
	e.wantNone(e.send)
	e.wantNone(e.recv)

	e.to(hca.QPInit)
	e.postRecv(2)
	must(b, e.step(hca.QPInit, hca.QPErr), "to ERR")
	must(b, e.step(hca.QPErr, hca.QPReset), "to RESET")
	e.wantNone(e.recv)
}

// Work requests and lists belong to the caller again when a post returns.
func postReuse(b *bench) {
	x, y := b.pair()
	recv := []hca.RecvWR{y.recvWR(3)}
	if n, err := y.qp.PostRecv(recv); n != 1 || err != nil {
		b.Fatalf("post receive: %d, %v", n, err)
	}
	recv[0].SGList[0], recv[0].ID = hca.SGE{}, 0
	must(b, x.step(hca.QPRTS, hca.QPSQD), "to SQD")
	send := []hca.SendWR{x.wr(1, y, x.message(0, []byte("mine")))}
	x.postSend(send...)
	send[0].SGList[0] = hca.SGE{}
	send[0] = hca.SendWR{}
	x.resume(y)
	wc := y.next(y.recv, 1)[0]
	if got := string(y.received(wc)); got != "mine" || wc.ID != 3 {
		b.Errorf("received %q in %d", got, wc.ID)
	}
}
