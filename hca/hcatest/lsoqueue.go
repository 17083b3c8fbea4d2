package hcatest

import (
	"slices"
	"time"

	"ipoibd/hca"
)

// sevenSegments returns a large send, whose ID is 0.
func (e *end) sevenSegments(to *end) hca.SendWR {
	e.Helper()
	p := e.kinds()[0]
	p.payload = pattern(700)
	return e.large(0, to, &p, 100)
}

// fillLarge posts large sends in SQD, which holds them, until the queue is full. It returns
// their IDs.
func (e *end) fillLarge(to *end) (ids []uint64) {
	e.Helper()
	for wr := e.sevenSegments(to); wr.ID <= 3*depth; wr.ID++ {
		n, err := e.qp.PostSend([]hca.SendWR{wr})
		if n == 1 {
			ids = append(ids, wr.ID)
			continue
		}
		if e.wantErr(err, hca.ErrQueueFull, "post a large send"); len(ids) == 0 {
			e.Fatal("an empty queue has no room for a large send")
		}
		return ids
	}
	e.Fatal("send queue never full")
	return nil
}

// A full queue has room again once its sends are sent, even if none was signaled.
func lsoQueueFull(b *bench) {
	s := defaultSpec()
	s.qp.SignalAll = false
	x, y := b.newEnd(b.a, s), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	wr, last := x.sevenSegments(y), x.wr(99, y, x.message(1, []byte("last")))
	last.Flags = hca.SendSignaled
	batch, full := slices.Repeat([]hca.SendWR{wr}, 5), 0
	for left := append(slices.Repeat(batch, 10), last); len(left) > 0; {
		n, err := x.qp.PostSend(left[:min(len(batch), len(left))])
		if left = left[n:]; err == nil {
			continue
		}
		x.wantErr(err, hca.ErrQueueFull, "post large sends")
		if full++; full > int(b.f.patience()/pause) {
			b.Fatalf("no room for %d more sends", len(left))
		}
		x.wantNone(x.send)
		time.Sleep(pause / 20)
	}
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 99)
	x.wantNone(x.send)
}

// Each large send is flushed once, however much of it was sent.
func lsoFlushed(b *bench) {
	x, y := b.pair()
	must(b, x.step(hca.QPRTS, hca.QPSQD), "to SQD")
	ids := x.fillLarge(y)
	must(b, x.step(hca.QPSQD, hca.QPErr), "to ERR")
	x.wantStatus(x.next(x.send, len(ids)), hca.WCWRFlushErr, ids...)
	x.postSend(x.sevenSegments(y))
	x.wantStatus(x.next(x.send, 1), hca.WCWRFlushErr, 0)
	x.wantNone(x.send)
}

// RESET drops large sends and frees the room that they used.
func lsoReset(b *bench) {
	x, y := b.pair()
	for range 3 {
		must(b, x.step(hca.QPRTS, hca.QPSQD), "to SQD")
		x.fillLarge(y)
		must(b, x.step(hca.QPSQD, hca.QPReset), "to RESET")
		x.wantNone(x.send)
		x.to(hca.QPRTS)
	}
	x.postSend(x.sevenSegments(y))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 0)
	x.wantNone(x.send)
}

// A large send whose third segment fails completes once. The send before it succeeds, and the
// one after it is flushed.
func lsoFailsMidway(b *bench) {
	x, y := b.pair()
	broken, after := x.sevenSegments(y), x.sevenSegments(y)
	broken.ID, after.ID = 2, 3
	good, bad := x.tx.SGE(0, 250), x.tx.SGE(250, 450)
	bad.LKey = ^bad.LKey
	broken.SGList = []hca.SGE{good, bad}
	x.postSend(x.wr(1, y, x.message(1, []byte("before"))), broken, after)
	got := x.status(x.next(x.send, 3), 1, 2, 3)
	if got[0] != hca.WCSuccess || got[2] != hca.WCWRFlushErr || !slices.Contains(b.f.sendErrors(), got[1]) {
		b.Errorf("statuses %v", got)
	}
	must(b, x.step(x.state(), hca.QPErr), "to ERR")
	x.wantNone(x.send)
	must(b, x.step(hca.QPErr, hca.QPReset), "to RESET")
	x.to(hca.QPRTS)
	x.postSend(x.sevenSegments(y))
	x.wantStatus(x.next(x.send, 1), hca.WCSuccess, 0)
	x.wantNone(x.send)
}
