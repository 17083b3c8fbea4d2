package hcatest

import (
	"errors"
	"time"

	"ipoibd/hca"
)

var cqChecks = []check{
	{name: "cq/poll_in_parts", run: cqPollParts},
	{name: "cq/wait_for_completion", run: cqWaitCompletion},
	{name: "cq/arm_is_for_later_ones", run: cqArmLater},
	{name: "cq/wait_until", run: cqWaitUntil},
	{name: "cq/wake", run: cqWake},
	{name: "cq/close_ends_wait", run: cqCloseEndsWait},
	{name: "cq/shared", run: cqShared},
	{name: "cq/overrun", run: cqOverrun},
}

// flushed produces n completions in the receive CQ at once.
func (e *end) flushed(n int) {
	e.Helper()
	e.to(hca.QPInit)
	e.postRecv(n)
	must(e, e.step(hca.QPInit, hca.QPErr), "to ERR")
}

func cqPollParts(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.flushed(5)
	e.wantStatus(e.next(e.recv, 2), hca.WCWRFlushErr, 0, 1)
	e.wantStatus(e.next(e.recv, 3), hca.WCWRFlushErr, 2, 3, 4)
	e.wantNone(e.recv)
	if n, err := e.recv.Poll(nil); n != 0 || err != nil {
		b.Errorf("poll with an empty slice: %d, %v", n, err)
	}
}

// waiting starts a Wait and returns a channel for its result.
func (e *end) waiting(cq hca.CQ) <-chan error {
	done := make(chan error, 1)
	go func() { done <- cq.Wait(time.Time{}) }()
	return done
}

func (e *end) wantWoken(done <-chan error, want error) {
	e.Helper()
	select {
	case err := <-done:
		if !errors.Is(err, want) {
			e.Errorf("wait: %v, want %v", err, want)
		}
	case <-time.After(e.f.patience()):
		e.Error("wait did not return in time")
	}
}

func cqWaitCompletion(b *bench) {
	x, y := b.pair()
	y.postRecv(1)
	must(b, y.recv.Arm(), "arm")
	done := y.waiting(y.recv)
	x.postSend(x.wr(1, y, x.message(0, []byte("wake up"))))
	y.wantWoken(done, nil)
	y.next(y.recv, 1)
	x.next(x.send, 1)
}

// A completion between Arm and Wait ends the Wait; one before Arm does not.
func cqArmLater(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.to(hca.QPInit)
	e.postRecv(2)
	must(b, e.recv.Arm(), "arm")
	must(b, e.step(hca.QPInit, hca.QPErr), "to ERR")
	must(b, e.recv.Wait(time.Now().Add(b.f.patience())), "wait")
	e.next(e.recv, 1)
	time.Sleep(pause) // a device may deliver the second completion later
	must(b, e.recv.Arm(), "arm")
	e.wantTimeout(e.recv)
	e.next(e.recv, 1)
}

// pause is the time limit of a Wait that must not end earlier.
const pause = 20 * time.Millisecond

// wantTimeout fails the test if Wait returns before its time limit.
func (e *end) wantTimeout(cq hca.CQ) {
	e.Helper()
	start := time.Now()
	must(e, cq.Wait(start.Add(pause)), "wait")
	if waited := time.Since(start); waited < pause {
		e.Errorf("waited %v, want %v", waited, pause)
	}
}

func cqWaitUntil(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	e.wantTimeout(e.recv)
	e.wantTimeout(e.recv)
	must(b, e.recv.Wait(time.Now().Add(-time.Second)), "wait until the past")
}

// Wake ends the current Wait, or else only the next one.
func cqWake(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	done := e.waiting(e.recv)
	e.recv.Wake()
	e.wantWoken(done, nil)
	e.recv.Wake()
	e.recv.Wake()
	e.wantWoken(e.waiting(e.recv), nil)
	e.wantTimeout(e.recv)
}

func cqCloseEndsWait(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	cq := b.cq(b.a, depth)
	done := e.waiting(cq)
	must(b, cq.Close(), "close CQ")
	e.wantWoken(done, hca.ErrClosed)
}

// One CQ may serve both queues of several QPs.
func cqShared(b *bench) {
	e := b.newEnd(b.a, defaultSpec())
	for range 3 {
		qp, err := e.pd.CreateQP(e.qp.Spec(), e.recv, e.recv)
		must(b, err, "create QP")
		b.closeLater(qp, "QP")
		f := *e
		f.qp, f.send = qp, e.recv
		f.to(hca.QPRTS)
		f.postRecv(1)
		f.postSend(f.wr(90, &f, f.message(0, []byte("shared"))))
		got := map[hca.WCOpcode]hca.WC{}
		for _, wc := range f.next(e.recv, 2) {
			got[wc.Opcode] = wc
		}
		if got[hca.WCSend].ID != 90 || got[hca.WCSend].QPN != qp.Num() || got[hca.WCRecv].QPN != qp.Num() {
			b.Errorf("completions %+v", got)
		}
	}
}

// If there are more completions than entries, CQ_ERR is reported. If the backend declares
// it, the CQ is in error, and the completions queued before are lost too.
func cqOverrun(b *bench) {
	s := defaultSpec()
	s.recvCQE = 2
	e := b.newEnd(b.a, s)
	done := e.waiting(e.recv)
	e.flushed(depth)
	e.wantEvent(e.host, hca.EventCQErr, e.recv.ID())
	if !b.f.OverrunVoidsCQ {
		e.recv.Wake()
		e.wantWoken(done, nil)
		return
	}
	e.wantWoken(done, hca.ErrCQ)
	_, err := e.recv.Poll(make([]hca.WC, depth))
	b.wantErr(err, hca.ErrCQ, "poll")
	b.wantErr(e.recv.Arm(), hca.ErrCQ, "arm")
	b.wantErr(e.recv.Wait(time.Time{}), hca.ErrCQ, "wait")
	e.wantState(hca.QPErr)
}
