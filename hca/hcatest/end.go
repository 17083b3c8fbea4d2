package hcatest

import (
	"slices"
	"time"

	"ipoibd/hca"
)

// The defaults of an end.
const (
	depth    = 16 // requests of each queue
	slotSize = 8192
	qkey     = hca.QKey(0x0b1b)
	startPSN = 0xfffffe // close to its wrap
)

// end is a QP with its CQs, PD and memory.
type end struct {
	*bench
	host       Host
	pd         hca.PD
	send, recv hca.CQ
	qp         hca.QP
	tx, rx     hca.MR // depth slots each
}

// spec is the data that an end is created from.
type spec struct {
	qp               hca.QPSpec
	sendCQE, recvCQE int
}

func defaultSpec() spec {
	return spec{
		qp:      hca.QPSpec{SendWRs: depth, RecvWRs: depth, SendSGEs: 2, RecvSGEs: 2, SignalAll: true},
		sendCQE: 4 * depth, recvCQE: 4 * depth,
	}
}

// newEnd returns an end in RESET. Its objects are closed in order when the test ends.
func (b *bench) newEnd(h Host, s spec) *end {
	b.Helper()
	e := &end{bench: b, host: h}
	var err error
	e.pd, err = h.Dev.AllocPD()
	must(b, err, "alloc PD")
	b.closeLater(e.pd, "PD")
	e.tx = e.memory(depth*slotSize, 0)
	e.rx = e.memory(depth*slotSize, hca.AccessLocalWrite)
	e.send, e.recv = b.cq(h, s.sendCQE), b.cq(h, s.recvCQE)
	e.qp, err = e.pd.CreateQP(s.qp, e.send, e.recv)
	must(b, err, "create QP")
	b.closeLater(e.qp, "QP")
	return e
}

func (b *bench) cq(h Host, entries int) hca.CQ {
	b.Helper()
	cq, err := h.Dev.CreateCQ(hca.CQSpec{Entries: entries})
	must(b, err, "create CQ")
	b.closeLater(cq, "CQ")
	return cq
}

func (e *end) memory(size int, access hca.Access) hca.MR {
	e.Helper()
	mr, err := e.pd.AllocMR(size, access)
	must(e, err, "allocate MR")
	e.closeLater(mr, "MR")
	return mr
}

type closer interface{ Close() error }

func (b *bench) closeLater(c closer, what string) {
	b.Cleanup(func() {
		if err := c.Close(); err != nil {
			b.Errorf("close %s: %v", what, err)
		}
	})
}

// pair returns two ends in RTS, one on each host.
func (b *bench) pair() (*end, *end) {
	b.Helper()
	x, y := b.newEnd(b.a, defaultSpec()), b.newEnd(b.b, defaultSpec())
	x.to(hca.QPRTS)
	y.to(hca.QPRTS)
	return x, y
}

// attr returns the attributes for moving an end to a state.
func (e *end) attr(s hca.QPState) hca.QPAttr {
	return hca.QPAttr{State: s, Port: e.host.Port, QKey: qkey, SQPSN: startPSN}
}

// step makes one transition with the attributes that it requires.
func (e *end) step(from, to hca.QPState) error {
	return e.qp.Modify(e.attr(to), hca.AttrState|hca.UDTransition(from, to).Required)
}

// to moves an end from RESET to a state by the shortest path.
func (e *end) to(s hca.QPState) {
	e.Helper()
	ways := map[hca.QPState][]hca.QPState{
		hca.QPInit: {hca.QPInit},
		hca.QPRTR:  {hca.QPInit, hca.QPRTR},
		hca.QPRTS:  {hca.QPInit, hca.QPRTR, hca.QPRTS},
		hca.QPSQD:  {hca.QPInit, hca.QPRTR, hca.QPRTS, hca.QPSQD},
		hca.QPErr:  {hca.QPErr},
	}
	from := hca.QPReset
	for _, next := range ways[s] {
		must(e, e.step(from, next), from.String()+" to "+next.String())
		from = next
	}
	if s == hca.QPSQE {
		e.to(hca.QPRTS)
		e.breakSend()
	}
}

// breakSend makes a send fail with an invalid L_Key.
func (e *end) breakSend() {
	e.Helper()
	sge := e.tx.SGE(0, 1)
	sge.LKey = ^sge.LKey
	e.postSend(e.wr(99, e, sge))
	e.status(e.next(e.send, 1), 99)
}

func (e *end) state() hca.QPState {
	e.Helper()
	a, err := e.qp.Query()
	must(e, err, "query QP")
	return a.State
}

func (e *end) wantState(want hca.QPState) {
	e.Helper()
	if got := e.state(); got != want {
		e.Fatalf("state %v, want %v", got, want)
	}
}

// gid returns the GID of an end.
func (e *end) gid() hca.GIDEntry {
	e.Helper()
	p, err := e.host.Dev.QueryPort(e.host.Port)
	must(e, err, "query port")
	return p.GIDs[e.host.SGIDIndex]
}

// ah creates an address handle for a GID. It is closed when the test ends.
func (e *end) ah(dgid hca.GID, dlid uint16) hca.AH {
	e.Helper()
	spec := e.globalAH(dgid, dlid)
	if e.f.NoGRH && !dgid.IsMulticast() {
		spec = hca.AHSpec{Port: e.host.Port, DLID: dlid}
	}
	ah, err := e.pd.CreateAH(spec)
	must(e, err, "create AH")
	e.closeLater(ah, "AH")
	return ah
}

// globalAH returns the data of an address handle with a GRH.
func (e *end) globalAH(dgid hca.GID, dlid uint16) hca.AHSpec {
	return hca.AHSpec{
		Port: e.host.Port, DLID: dlid, Global: true, DGID: dgid, SGIDIndex: e.host.SGIDIndex, HopLimit: 3,
	}
}

// wr returns a send to another end.
func (e *end) wr(id uint64, to *end, sges ...hca.SGE) hca.SendWR {
	e.Helper()
	return hca.SendWR{ID: id, SGList: sges, UD: hca.UDDest{
		AH: e.ah(to.gid().GID, to.host.DLID), QPN: to.qp.Num(), QKey: qkey,
	}}
}

// message writes bytes to a slot of the send memory and returns their entry.
func (e *end) message(slot int, b []byte) hca.SGE {
	return e.tx.SGE(slot*slotSize, copy(e.tx.Bytes()[slot*slotSize:][:slotSize], b))
}

func (e *end) postSend(wrs ...hca.SendWR) {
	e.Helper()
	if n, err := e.qp.PostSend(wrs); n != len(wrs) || err != nil {
		e.Fatalf("posted %d of %d sends: %v", n, len(wrs), err)
	}
}

// recvWR returns a receive into a slot of the receive memory. The slot is also its ID.
func (e *end) recvWR(slot int) hca.RecvWR {
	return hca.RecvWR{ID: uint64(slot), SGList: []hca.SGE{e.rx.SGE(slot*slotSize, slotSize)}}
}

// postRecv posts the first n slots.
func (e *end) postRecv(n int) {
	e.Helper()
	var wrs []hca.RecvWR
	for i := range n {
		wrs = append(wrs, e.recvWR(i))
	}
	if n, err := e.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		e.Fatalf("posted %d of %d receives: %v", n, len(wrs), err)
	}
}

// next waits for n completions. It arms before it polls, so that it misses none.
func (e *end) next(cq hca.CQ, n int) []hca.WC {
	e.Helper()
	deadline := time.Now().Add(e.f.patience())
	var got []hca.WC
	for len(got) < n {
		if !time.Now().Before(deadline) {
			e.Fatalf("%d completions in time, want %d; the device has counted %v", len(got), n, counted(e.host.Dev))
		}
		must(e, cq.Arm(), "arm CQ")
		if got = e.poll(cq, got, n-len(got)); len(got) < n {
			must(e, cq.Wait(deadline), "wait for CQ")
		}
	}
	return got
}

// counted returns the counters of a device that are not zero.
func counted(dev hca.Device) map[string]uint64 {
	out := map[string]uint64{}
	for _, c := range dev.Counters() {
		if c.Value != 0 {
			out[c.Name] = c.Value
		}
	}
	return out
}

// poll appends the queued completions, up to limit.
func (e *end) poll(cq hca.CQ, to []hca.WC, limit int) []hca.WC {
	e.Helper()
	wc := make([]hca.WC, limit)
	n, err := cq.Poll(wc)
	must(e, err, "poll CQ")
	return append(to, wc[:n]...)
}

// wantNone fails the test if the CQ has a completion.
func (e *end) wantNone(cq hca.CQ) {
	e.Helper()
	if got := e.poll(cq, nil, depth); len(got) > 0 {
		e.Fatalf("unexpected completions: %+v", got)
	}
}

// status checks the IDs of completions, and returns their statuses.
func (e *end) status(wcs []hca.WC, ids ...uint64) (s []hca.WCStatus) {
	e.Helper()
	var got []uint64
	for _, wc := range wcs {
		got, s = append(got, wc.ID), append(s, wc.Status)
	}
	if !slices.Equal(got, ids) {
		e.Fatalf("completions of %v, want %v", got, ids)
	}
	return s
}

// wantStatus checks the IDs of completions, and that all have the same status.
func (e *end) wantStatus(wcs []hca.WC, want hca.WCStatus, ids ...uint64) {
	e.Helper()
	for i, s := range e.status(wcs, ids...) {
		if s != want {
			e.Fatalf("completion of %d: %v, want %v", ids[i], s, want)
		}
	}
}

// received returns the payload of a receive completion.
func (e *end) received(wc hca.WC) []byte {
	e.Helper()
	if wc.Status != hca.WCSuccess || wc.ByteLen < hca.GRHLen || wc.LRO != (hca.LRO{}) && !e.qp.Spec().LRO {
		e.Fatalf("receive: %+v", wc)
	}
	return e.rx.Bytes()[int(wc.ID)*slotSize:][hca.GRHLen:wc.ByteLen]
}

// probe sends a text to another end and returns the completion of the receive. The text must
// be the next message that arrives there.
func (e *end) probe(to *end, text string) hca.WC {
	e.Helper()
	e.postSend(e.wr(77, to, e.message(depth-1, []byte(text))))
	e.wantStatus(e.next(e.send, 1), hca.WCSuccess, 77)
	wc := to.next(to.recv, 1)[0]
	if got := string(to.received(wc)); got != text {
		e.Fatalf("received %q, want %q", got, text)
	}
	return wc
}
