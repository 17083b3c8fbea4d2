package hcatest

import "ipoibd/hca"

var dropChecks = []check{
	{name: "drop/wrong_qkey", run: dropCheck(func(wr *hca.SendWR) { wr.UD.QKey++ })},
	{name: "drop/unknown_qp", run: dropCheck(func(wr *hca.SendWR) { wr.UD.QPN ^= 0x123456 })},
	{name: "drop/gsi", run: dropCheck(func(wr *hca.SendWR) { wr.UD.QPN = hca.QPNGSI })},
	{name: "drop/wrong_pkey", run: dropPKey, needs: func(f Features, _ Host) bool { return f.OtherPKey }},
	{name: "drop/no_receive", run: dropNoReceive},
	{name: "drop/not_ready", run: dropNotReady},
}

// dropCheck sends a message that must not arrive. The send succeeds, the receiver gets no
// completion, and its receive is used for the next message.
func dropCheck(spoil func(*hca.SendWR)) func(*bench) {
	return func(b *bench) {
		x, y := b.pair()
		y.postRecv(2)
		wr := x.wr(1, y, x.message(0, []byte("not for you")))
		spoil(&wr)
		x.postSend(wr)
		x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
		if wc := x.probe(y, "for you"); wc.ID != 0 {
			b.Errorf("the next message arrived in receive %d, want 0", wc.ID)
		}
		y.wantNone(y.recv)
	}
}

// QPs in different partitions cannot reach each other.
func dropPKey(b *bench) {
	x, y, z := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec()), b.newEnd(b.a, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	a := z.attr(hca.QPInit)
	a.PKeyIndex = 1
	must(b, z.qp.Modify(a, hca.AttrState|hca.AttrPKeyIndex|hca.AttrPort|hca.AttrQKey), "to INIT")
	must(b, z.step(hca.QPInit, hca.QPRTR), "to RTR")
	must(b, z.step(hca.QPRTR, hca.QPRTS), "to RTS")
	y.postRecv(1)
	z.postRecv(1)
	for _, wr := range []struct{ from, to *end }{{z, y}, {y, z}} {
		wr.from.postSend(wr.from.wr(1, wr.to, wr.from.message(0, []byte("other partition"))))
		wr.from.wantStatus(wr.from.next(wr.from.send, 1), hca.WCSuccess, 1)
	}
	x.probe(y, "same partition")
	z.wantNone(z.recv)
}

func dropNoReceive(b *bench) {
	x, y, z := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec()), b.newEnd(b.b, defaultSpec())
	for _, e := range []*end{x, y, z} {
		e.to(hca.QPRTS)
	}
	z.postRecv(1)
	x.postSend(x.wr(1, y, x.message(0, []byte("no receive"))))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	x.probe(z, "the previous one was processed")
	y.postRecv(1)
	x.probe(y, "one receive")
}

// INIT holds posted receives but receives no message.
func dropNotReady(b *bench) {
	x, y, z := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec()), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	z.to(hca.QPRTS)
	y.to(hca.QPInit)
	y.postRecv(1)
	z.postRecv(1)
	x.postSend(x.wr(1, y, x.message(0, []byte("too early"))))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 1)
	x.probe(z, "the previous one was processed")
	must(b, y.step(hca.QPInit, hca.QPRTR), "to RTR")
	x.probe(y, "in time")
}
