package hcatest

import (
	"time"

	"ipoibd/hca"
)

var lifeChecks = []check{
	{name: "life/parents_are_busy", run: lifeParentsBusy},
	{name: "life/close_twice", run: lifeCloseTwice},
	{name: "life/closed_handles", run: lifeClosedHandles},
	{name: "life/closed_qp_leaves_nothing", run: lifeQPLeavesNothing},
	{name: "life/foreign_cq", run: lifeForeignCQ},
	{name: "life/reuse", run: lifeReuse},
}

// Closing a parent that still has children fails, and the parent continues to work.
func lifeParentsBusy(b *bench) {
	x, y := b.pair()
	x.ah(y.gid().GID, y.host.DLID)
	for _, c := range []closer{x.send, x.recv, x.pd, x.host.Dev} {
		b.wantErr(c.Close(), hca.ErrBusy, "close parent")
	}
	y.postRecv(1)
	x.probe(y, "parents work")
}

func lifeCloseTwice(b *bench) {
	x, _ := b.pair()
	ah := x.ah(x.gid().GID, x.host.DLID)
	for _, c := range []closer{ah, x.qp, x.send, x.recv, x.tx, x.rx, x.pd} {
		must(b, c.Close(), "close")
		must(b, c.Close(), "close again")
	}
}

func lifeClosedHandles(b *bench) {
	x, _ := b.pair()
	wr := x.wr(1, x, x.message(0, []byte("x")))
	must(b, x.qp.Close(), "close QP")
	_, err := x.qp.PostSend([]hca.SendWR{wr})
	b.wantErr(err, hca.ErrClosed, "post send")
	_, err = x.qp.PostRecv([]hca.RecvWR{x.recvWR(0)})
	b.wantErr(err, hca.ErrClosed, "post receive")
	b.wantErr(x.step(hca.QPRTS, hca.QPErr), hca.ErrClosed, "modify")
	_, err = x.qp.Query()
	b.wantErr(err, hca.ErrClosed, "query")
	must(b, x.send.Close(), "close CQ")
	_, err = x.send.Poll(make([]hca.WC, 1))
	b.wantErr(err, hca.ErrClosed, "poll")
	b.wantErr(x.send.Arm(), hca.ErrClosed, "arm")
	b.wantErr(x.send.Wait(time.Time{}), hca.ErrClosed, "wait")
	_, err = x.pd.CreateQP(defaultSpec().qp, x.send, x.recv)
	b.wantErr(err, hca.ErrInvalid, "create QP on a closed CQ")
}

// Closing a QP removes its completions that are not yet polled, but not the completions of others.
func lifeQPLeavesNothing(b *bench) {
	x := b.newEnd(b.a, defaultSpec())
	other, err := x.pd.CreateQP(defaultSpec().qp, x.send, x.recv)
	must(b, err, "create second QP")
	b.closeLater(other, "second QP")
	y := *x
	y.qp = other
	for _, e := range []*end{x, &y} {
		e.to(hca.QPInit)
		e.postRecv(3)
		must(b, e.step(hca.QPInit, hca.QPErr), "to ERR")
	}
	must(b, x.qp.Close(), "close QP")
	for _, wc := range y.next(y.recv, 3) {
		if wc.QPN != other.Num() {
			b.Fatalf("completion of a closed QP: %+v", wc)
		}
	}
	y.wantNone(y.recv)
}

// The CQs of a QP must belong to the same device.
func lifeForeignCQ(b *bench) {
	x := b.newEnd(b.a, defaultSpec())
	foreign := b.cq(b.b, depth)
	_, err := x.pd.CreateQP(defaultSpec().qp, foreign, x.recv)
	b.wantErr(err, hca.ErrInvalid, "create QP")
	_, err = x.pd.CreateQP(defaultSpec().qp, x.send, foreign)
	b.wantErr(err, hca.ErrInvalid, "create QP")
}

// Creating and closing objects many times does not exhaust the device.
func lifeReuse(b *bench) {
	x, y := b.pair()
	for range 300 {
		mr, err := x.pd.AllocMR(4096, hca.AccessLocalWrite)
		must(b, err, "allocate MR")
		qp, err := x.pd.CreateQP(x.qp.Spec(), x.send, x.recv)
		must(b, err, "create QP")
		must(b, qp.Close(), "close QP")
		must(b, mr.Close(), "close MR")
	}
	y.postRecv(1)
	x.probe(y, "still working")
}
