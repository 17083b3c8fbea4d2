package softqp

import (
	"errors"
	"slices"
	"testing"

	"ipoibd/hca"
)

// Takes one QP from RESET through send and receive errors and back to RESET.
func TestStory(t *testing.T) {
	r := newRig(t, defaultSpec())
	r.up(hca.QPInit)
	r.recv(1, 100) // held
	if got := r.Deliver(r.env, inbound("early")); got != DropQPState {
		t.Fatalf("deliver in INIT: %v, want %v", got, DropQPState)
	}
	if err := errors.Join(r.step(hca.QPInit, hca.QPRTR), r.step(hca.QPRTR, hca.QPRTS)); err != nil {
		t.Fatal(err)
	}
	if got := r.Deliver(r.env, inbound("in time")); got != Passed {
		t.Fatalf("deliver in RTS: %v, want %v", got, Passed)
	}
	r.wantReceived(outcome{1, hca.WCSuccess})

	// A send that is too long stops the send side; the requests after it are flushed.
	r.send(10, peer4, 8)
	r.send(11, peer4, 1449)
	r.send(12, peer4, 8)
	b := r.fill()
	if len(b.Trains()) != 1 || b.Tail != TailFail || b.Reason != FailSendLength {
		t.Fatalf("%d datagrams, tail %v, reason %v", len(b.Trains()), b.Tail, b.Reason)
	}
	r.Finish(b, 1)
	r.wantSent(outcome{10, hca.WCSuccess}, outcome{11, hca.WCLocLenErr}, outcome{12, hca.WCWRFlushErr})
	r.wantState(hca.QPSQE)

	// The QP still receives in SQE; a later send is flushed immediately.
	r.recv(2, 100)
	if got := r.Deliver(r.env, inbound("in SQE")); got != Passed {
		t.Fatalf("deliver in SQE: %v, want %v", got, Passed)
	}
	r.wantReceived(outcome{2, hca.WCSuccess})
	r.send(13, peer4, 8)
	r.wantSent(outcome{13, hca.WCWRFlushErr})

	// Back in RTS, a receive that is too short moves the QP to ERR. Its completion is not
	// visible before the send side has failed as well.
	if err := r.step(hca.QPSQE, hca.QPRTS); err != nil {
		t.Fatal(err)
	}
	r.send(14, peer4, 8)
	r.recv(3, hca.GRHLen+3)
	r.recv(4, 100)
	if got := r.Deliver(r.env, inbound("four")); got != FailRecvLength {
		t.Fatalf("a receive that is too short: %v, want %v", got, FailRecvLength)
	}
	r.wantState(hca.QPErr)
	r.wantReceived()
	r.wantSent()
	r.Settle()
	r.wantReceived(outcome{3, hca.WCLocLenErr}, outcome{4, hca.WCWRFlushErr})
	r.wantSent(outcome{14, hca.WCWRFlushErr})
	r.Settle()
	r.wantSent()

	// RESET drops requests, completions and attributes.
	r.send(15, peer4, 8)
	r.recv(5, 100)
	r.Reset()
	r.wantSent()
	r.wantReceived()
	if got := r.Query(); got != (hca.QPAttr{}) {
		t.Fatalf("attributes after RESET: %+v, want none", got)
	}
}

// A Modify to RESET before Settle drops the receive error together with the requests.
func TestSettleAfterReset(t *testing.T) {
	r := rtsRig(t)
	r.recv(1, 10)
	r.Deliver(r.env, inbound("x"))
	r.Reset()
	r.up(hca.QPRTS)
	r.Settle()
	r.wantState(hca.QPRTS)
	r.wantReceived()
}

// Modify follows the table for every pair of states, also with one attribute added or
// removed, and changes nothing if it returns an error.
func TestModifyFollowsTheTable(t *testing.T) {
	bits := []hca.QPAttrMask{0, hca.AttrState, hca.AttrCurState, hca.AttrPKeyIndex, hca.AttrPort, hca.AttrQKey, hca.AttrSQPSN}
	for from := hca.QPState(0); from < hca.NumQPState; from++ {
		for to := hca.QPState(0); to <= hca.NumQPState; to++ {
			for _, bit := range bits {
				rule := hca.UDTransition(from, to)
				mask := (hca.AttrState | rule.Required) ^ bit
				checkModify(t, from, to, mask, mask&hca.AttrState != 0 && rule.Check(mask))
			}
		}
	}
}

func checkModify(t *testing.T, from, to hca.QPState, mask hca.QPAttrMask, allowed bool) {
	t.Helper()
	r := newRig(t, defaultSpec())
	r.become(from)
	before := r.Query()
	err := r.Modify(hca.QPAttr{State: to, CurState: from, Port: 1, QKey: 5, SQPSN: 6, PKeyIndex: 1}, mask, r.env)
	want := before
	if allowed {
		want = modified(before, to, mask)
	}
	if (err == nil) != allowed || err != nil && !errors.Is(err, hca.ErrInvalid) || r.Query() != want {
		t.Errorf("%v to %v, mask %#x: %v, then %+v, want %+v", from, to, uint32(mask), err, r.Query(), want)
	}
}

func modified(a hca.QPAttr, to hca.QPState, mask hca.QPAttrMask) hca.QPAttr {
	if to == hca.QPReset {
		return hca.QPAttr{}
	}
	a.State, a.CurState = to, to
	if mask&hca.AttrPort != 0 {
		a.Port = 1
	}
	if mask&hca.AttrQKey != 0 {
		a.QKey = 5
	}
	if mask&hca.AttrSQPSN != 0 {
		a.SQPSN = 6
	}
	if mask&hca.AttrPKeyIndex != 0 {
		a.PKeyIndex = 1
	}
	return a
}

func TestModifyRefusesValues(t *testing.T) {
	init := hca.AttrState | hca.AttrPKeyIndex | hca.AttrPort | hca.AttrQKey
	for name, c := range map[string]struct {
		at   hca.QPState
		attr hca.QPAttr
		mask hca.QPAttrMask
	}{
		"P_Key index":   {hca.QPReset, hca.QPAttr{State: hca.QPInit, Port: 1, PKeyIndex: 2}, init},
		"port 0":        {hca.QPReset, hca.QPAttr{State: hca.QPInit}, init},
		"port 2":        {hca.QPReset, hca.QPAttr{State: hca.QPInit, Port: 2}, init},
		"PSN":           {hca.QPRTR, hca.QPAttr{State: hca.QPRTS, SQPSN: 1 << 24}, hca.AttrState | hca.AttrSQPSN},
		"current state": {hca.QPRTS, hca.QPAttr{State: hca.QPRTS, CurState: hca.QPSQD}, hca.AttrState | hca.AttrCurState},
	} {
		r := newRig(t, defaultSpec())
		r.become(c.at)
		if err := r.Modify(c.attr, c.mask, r.env); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, hca.ErrInvalid)
		}
		r.wantState(c.at)
	}
}

// Every state handles a post as the contract requires.
func TestPostInEveryState(t *testing.T) {
	for s := hca.QPState(0); s < hca.NumQPState; s++ {
		r := newRig(t, defaultSpec())
		r.become(s)
		sendErr := r.PostSend(&hca.SendWR{ID: 1}, ahTo(peer4))
		recvErr := r.PostRecv(&hca.RecvWR{ID: 2})
		checkPost(t, s, "send", s.SendQueue(), sendErr, r.SendDone(), r.waiting())
		checkPost(t, s, "receive", s.RecvQueue(), recvErr, r.RecvDone(), r.QP.recv.queue.len())
	}
}

func checkPost(t *testing.T, s hca.QPState, what string, b hca.QueueBehaviour, err error, done []hca.WC, queued int) {
	t.Helper()
	var ok bool
	switch b {
	case hca.QueueRefuses:
		ok = errors.Is(err, hca.ErrInvalid) && len(done) == 0 && queued == 0
	case hca.QueueHolds, hca.QueueRuns:
		ok = err == nil && len(done) == 0 && queued == 1
	case hca.QueueFlushes:
		ok = err == nil && len(done) == 1 && done[0].Status == hca.WCWRFlushErr && queued == 0
	}
	if !ok {
		t.Errorf("%s in %v: %v, completions %v, %d queued", what, s, err, done, queued)
	}
}

func TestPostRefusesRequests(t *testing.T) {
	r := newRig(t, hca.QPSpec{SendWRs: 1, RecvWRs: 1, SendSGEs: 1, RecvSGEs: 1})
	r.up(hca.QPRTS)
	two := []hca.SGE{r.txSGE(0, 1), r.txSGE(1, 1)}
	for name, wr := range map[string]hca.SendWR{
		"list":              {SGList: two},
		"QPN":               {UD: hca.UDDest{QPN: 1 << 24}},
		"large send":        {LSO: hca.LSO{Header: []byte("no header"), MSS: 100}},
		"negative MSS":      {LSO: hca.LSO{Header: tcpHeader, MSS: -1}},
		"too many segments": {LSO: hca.LSO{Header: tcpHeader, MSS: 1}, SGList: []hca.SGE{r.txSGE(0, hca.MaxLSOSegments+1)}},
		"too large a send":  {LSO: hca.LSO{Header: tcpHeader, MSS: 100}, SGList: []hca.SGE{r.txSGE(0, MaxTSO+1)}},
	} {
		if err := r.PostSend(&wr, ahTo(peer4)); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, hca.ErrInvalid)
		}
	}
	if err := r.PostRecv(&hca.RecvWR{SGList: two}); !errors.Is(err, hca.ErrInvalid) {
		t.Errorf("receive with a list that is too long: %v, want %v", err, hca.ErrInvalid)
	}
	r.send(1, peer4, 1)
	r.recv(1, 100)
	if err := r.PostSend(&hca.SendWR{}, ahTo(peer4)); !errors.Is(err, hca.ErrQueueFull) {
		t.Errorf("second send: %v, want %v", err, hca.ErrQueueFull)
	}
	if err := r.PostRecv(&hca.RecvWR{}); !errors.Is(err, hca.ErrQueueFull) {
		t.Errorf("second receive: %v, want %v", err, hca.ErrQueueFull)
	}
}

// A QP in any state follows another queue of the same number into ERR, as the state table
// permits, and flushes both queues. One in RTS or SQD follows into SQE, and flushes only sends.
// Nothing else changes.
func TestFollow(t *testing.T) {
	for from := hca.QPState(0); from < hca.NumQPState; from++ {
		for _, to := range []hca.QPState{hca.QPSQE, hca.QPErr} {
			r := newRig(t, defaultSpec())
			r.become(from)
			var sends, recvs []outcome // that are flushed
			if b := from.SendQueue(); b == hca.QueueRuns || b == hca.QueueHolds {
				r.send(1, peer4, 8)
				sends = []outcome{{1, hca.WCWRFlushErr}}
			}
			if b := from.RecvQueue(); b == hca.QueueRuns || b == hca.QueueHolds {
				r.recv(2, 100)
				recvs = []outcome{{2, hca.WCWRFlushErr}}
			}
			want := to
			switch {
			case to == hca.QPErr:
				if !hca.UDTransition(from, to).Allowed {
					t.Errorf("the state table refuses %v to %v", from, to)
				}
			case from == hca.QPRTS || from == hca.QPSQD:
				recvs = nil
			default:
				want, sends, recvs = from, nil, nil
			}
			r.Follow(to)
			sent, received := outcomes(r.SendDone()), outcomes(r.RecvDone())
			if got := r.Query().State; got != want || !slices.Equal(sent, sends) || !slices.Equal(received, recvs) {
				t.Errorf("%v follows to %v: %v, completions %v and %v; want %v, %v and %v", from, to, got, sent, received, want, sends, recvs)
			}
		}
	}
}
