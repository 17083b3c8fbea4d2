package hcatest

import (
	"slices"

	"ipoibd/hca"
)

var errorChecks = []check{
	{name: "error/send_protection", run: errorSendProtection, needs: protects},
	{name: "error/send_error_state", run: errorSendState},
	{name: "error/sqe_repaired", run: errorSQERepaired, needs: func(f Features, _ Host) bool {
		return f.SendErrorIsSQE
	}},
	{name: "error/send_too_long", run: errorSendTooLong, needs: func(f Features, _ Host) bool {
		return f.LongSendIsErr
	}},
	{name: "error/receive_protection", run: errorRecvProtection, needs: protects},
	{name: "error/receive_too_short", run: errorRecvTooShort, needs: func(f Features, _ Host) bool {
		return f.ShortRecvIsErr
	}},
}

func protects(f Features, _ Host) bool { return f.ChecksProtection }

// forbidden returns entries for memory that neither a send nor a receive may access.
func (e *end) forbidden() map[string]hca.SGE {
	e.Helper()
	other := e.newEnd(e.host, defaultSpec())
	gone, err := e.pd.AllocMR(4096, hca.AccessLocalWrite)
	must(e, err, "allocate MR")
	closed := gone.SGE(0, 100)
	must(e, gone.Close(), "close MR")
	past := e.rx.SGE(depth*slotSize-100, 100)
	past.Length++
	before := e.rx.SGE(0, 100)
	before.Addr--
	wrap := e.rx.SGE(1, 100)
	wrap.Length = 1<<32 - 1
	key := e.rx.SGE(0, 100)
	key.LKey += 1 << 20
	return map[string]hca.SGE{
		"another domain": other.rx.SGE(0, 100), "closed": closed, "past the end": past,
		"before the start": before, "much too long": wrap, "unknown key": key,
	}
}

// A send from memory that it must not access fails. The send before it succeeds, and the one
// after it is flushed.
func errorSendProtection(b *bench) {
	x, y := b.pair()
	y.postRecv(depth)
	bad := x.forbidden()
	if !b.f.LongSendIsErr {
		delete(bad, "much too long")
	}
	for what, sge := range bad {
		wr := x.wr(2, y, x.message(0, []byte("x")), sge)
		x.postSend(x.wr(1, y, x.message(1, []byte("before"))), wr, x.wr(3, y, x.message(2, []byte("after"))))
		got := x.status(x.next(x.send, 3), 1, 2, 3)
		if got[0] != hca.WCSuccess || got[2] != hca.WCWRFlushErr || !slices.Contains(b.f.sendErrors(), got[1]) {
			b.Errorf("%s: %v", what, got)
		}
		if text := string(y.received(y.next(y.recv, 1)[0])); text != "before" {
			b.Errorf("%s: received %q", what, text)
		}
		must(b, x.step(x.state(), hca.QPReset), "to RESET")
		x.to(hca.QPRTS)
	}
	y.wantNone(y.recv)
}

// A send error stops only the send side, or the whole QP, as declared.
func errorSendState(b *bench) {
	x, y := b.pair()
	x.postRecv(1)
	x.breakSend()
	x.postSend(x.wr(5, y, x.message(0, []byte("flushed"))))
	x.wantStatus(x.next(x.send, 1), hca.WCWRFlushErr, 5)
	if !b.f.SendErrorIsSQE {
		x.wantState(hca.QPErr)
		x.wantStatus(x.next(x.recv, 1), hca.WCWRFlushErr, 0)
		return
	}
	x.wantState(hca.QPSQE)
	y.probe(x, "receives work")
}

func errorSQERepaired(b *bench) {
	x, y := b.pair()
	x.breakSend()
	must(b, x.step(hca.QPSQE, hca.QPRTS), "to RTS")
	y.postRecv(1)
	x.probe(y, "repaired")
}

func errorSendTooLong(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	x.postSend(x.wr(1, y, x.message(0, make([]byte, x.gid().MaxPayload+1))))
	x.wantStatus(x.next(x.send, 1), hca.WCLocLenErr, 1)
	must(b, x.step(x.state(), hca.QPReset), "to RESET")
	x.to(hca.QPRTS)
	x.probe(y, "short enough")
}

// A receive into memory that it must not access moves the QP to ERR.
func errorRecvProtection(b *bench) {
	x, y := b.pair()
	bad := y.forbidden()
	bad["not writable"] = y.tx.SGE(0, 200)
	if !b.f.ChecksWholeRecv {
		delete(bad, "past the end")
		delete(bad, "much too long")
	}
	for what, sge := range bad {
		y.brokenRecv(x, sge, hca.WCLocProtErr, what)
	}
}

func errorRecvTooShort(b *bench) {
	x, y := b.pair()
	for _, n := range []int{0, 1, hca.GRHLen - 1, hca.GRHLen, hca.GRHLen + 4} {
		y.brokenRecv(x, y.rx.SGE(0, n), hca.WCLocLenErr, "too short")
	}
}

// brokenRecv sends five bytes to a receive that cannot hold them, checks the failure, and
// brings the QP up again.
func (e *end) brokenRecv(from *end, sge hca.SGE, want hca.WCStatus, what string) {
	e.Helper()
	wrs := []hca.RecvWR{{ID: 50, SGList: []hca.SGE{sge}}, e.recvWR(1)}
	if n, err := e.qp.PostRecv(wrs); n != 2 {
		e.Fatalf("post receive: %v", err)
	}
	from.postSend(from.wr(1, e, from.message(0, []byte("12345"))))
	from.next(from.send, 1)
	got := e.status(e.next(e.recv, 2), 50, 1)
	if got[0] != want && got[0] != hca.WCLocQPOpErr || got[1] != hca.WCWRFlushErr {
		e.Errorf("%s: %v", what, got)
	}
	e.wantState(hca.QPErr)
	e.postSend(e.wr(8, from, e.message(0, []byte("x"))))
	e.wantStatus(e.next(e.send, 1), hca.WCWRFlushErr, 8)
	must(e, e.step(hca.QPErr, hca.QPReset), "to RESET")
	e.to(hca.QPRTS)
}
