package ud

import (
	"slices"
	"time"

	"ipoibd/hca"
)

// fakeMR is memory whose addresses are offsets.
type fakeMR struct{ mem []byte }

func (m *fakeMR) Bytes() []byte { return m.mem }
func (m *fakeMR) Close() error  { return nil }
func (m *fakeMR) SGE(off, n int) hca.SGE {
	_ = m.mem[off : off+n]
	return hca.SGE{Addr: uint64(off), Length: uint32(n), LKey: 7}
}

func (m *fakeMR) at(e hca.SGE) []byte { return m.mem[e.Addr:][:e.Length] }

// fakeCQ is a queue of completions. Wait never blocks: it calls onWait, in
// which the test makes the device progress.
type fakeCQ struct {
	hca.CQ
	wcs    []hca.WC
	err    error
	armed  int
	waits  int
	onArm  func()
	onWait func(until time.Time)
}

func (c *fakeCQ) add(wcs ...hca.WC) { c.wcs = append(c.wcs, wcs...) }

func (c *fakeCQ) Poll(wc []hca.WC) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n := copy(wc, c.wcs)
	c.wcs = c.wcs[:copy(c.wcs, c.wcs[n:])]
	return n, nil
}

func (c *fakeCQ) Arm() error {
	c.armed++
	if c.onArm != nil {
		c.onArm()
	}
	return nil
}

func (c *fakeCQ) Wait(until time.Time) error {
	c.waits++
	if c.onWait != nil {
		c.onWait(until)
	}
	return nil
}

// posted is a work request that the device owns.
type posted struct {
	id       uint64
	sge      hca.SGE
	to       hca.UDDest
	signaled bool
	lso      hca.LSO
}

// fakeQP keeps work requests until the test completes them. Its queues have
// depth entries; if auto is set, sends complete at once.
type fakeQP struct {
	hca.QP
	mr             *fakeMR
	sendCQ, recvCQ *fakeCQ
	depth          int
	auto           bool
	lro, lroUDP    bool
	refuse         error // error of the next posts, once refuseAfter were accepted
	refuseAfter    int
	invalid        func(*hca.SendWR) bool // selects sends to refuse individually
	sends, recvs   []posted
	sendCalls      int
}

func (q *fakeQP) Num() hca.QPN { return qpnA }
func (q *fakeQP) Spec() hca.QPSpec {
	return hca.QPSpec{SendWRs: q.depth, RecvWRs: q.depth, LRO: q.lro, LROUDP: q.lroUDP}
}

// room returns how many of n posts are accepted, and the error that ends them.
func (q *fakeQP) room(n, used int) (int, error) {
	switch {
	case q.refuse != nil && q.refuseAfter < n:
		return q.refuseAfter, q.refuse
	case q.depth-used < n:
		return max(q.depth-used, 0), hca.ErrQueueFull
	}
	return n, nil
}

func (q *fakeQP) PostSend(wrs []hca.SendWR) (int, error) {
	q.sendCalls++
	n, err := q.room(len(wrs), len(q.sends))
	for i := 0; q.invalid != nil && i < n; i++ {
		if q.invalid(&wrs[i]) {
			n, err = i, &hca.VerbError{Verb: "post_send", Err: hca.ErrInvalid}
		}
	}
	for i := range n {
		w := &wrs[i]
		q.sends = append(q.sends, posted{w.ID, w.SGList[0], w.UD, w.Flags&hca.SendSignaled != 0, w.LSO})
	}
	if q.auto {
		q.completeSends(len(q.sends), hca.WCSuccess)
	}
	return n, err
}

func (q *fakeQP) PostRecv(wrs []hca.RecvWR) (int, error) {
	n, err := q.room(len(wrs), len(q.recvs))
	for i := range n {
		q.recvs = append(q.recvs, posted{id: wrs[i].ID, sge: wrs[i].SGList[0]})
	}
	return n, err
}

// completeSends completes the n oldest sends; successful unsignaled sends
// produce no completion.
func (q *fakeQP) completeSends(n int, status hca.WCStatus) {
	for _, s := range q.sends[:n] {
		if s.signaled || status != hca.WCSuccess {
			q.sendCQ.add(hca.WC{ID: s.id, Status: status, Opcode: hca.WCSend})
		}
	}
	q.sends = q.sends[:copy(q.sends, q.sends[n:])]
}

// receive completes the oldest receive with a message from B behind a GRH.
func (q *fakeQP) receive(msg []byte, dgid hca.GID) {
	q.receiveWC(msg, dgid, hca.WC{Flags: hca.WCFlagGRH, SrcQPN: qpnB, ByteLen: uint32(hca.GRHLen + len(msg))})
}

func (q *fakeQP) receiveWC(msg []byte, dgid hca.GID, wc hca.WC) {
	buf := q.mr.at(q.recvs[0].sge)
	putGRH(buf, gidB, dgid)
	copy(buf[hca.GRHLen:], msg)
	q.completeRecv(wc)
}

// completeRecv completes the oldest receive.
func (q *fakeQP) completeRecv(wc hca.WC) {
	wc.ID, wc.Opcode = q.recvs[0].id, hca.WCRecv
	q.recvs = q.recvs[:copy(q.recvs, q.recvs[1:])]
	q.recvCQ.add(wc)
}

// completeID completes the receive with this ID, which may never have been
// posted.
func (q *fakeQP) completeID(id uint64, wc hca.WC) {
	wc.ID, wc.Opcode = id, hca.WCRecv
	q.recvs = slices.DeleteFunc(q.recvs, func(p posted) bool { return p.id == id })
	q.recvCQ.add(wc)
}
