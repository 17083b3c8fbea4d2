package subnet

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"ipoibd/cmd/ipoibd/internal/endpoint"
	"ipoibd/hca"
	"ipoibd/hca/mad"
	"ipoibd/neigh/sa"
	"ipoibd/ud/port"
)

const (
	// sendSlots is the number of MADs that can be in the send queue, where they stay for microseconds: as many as the
	// client has outstanding, and the first tries of as many more.
	sendSlots = 32
	// recvSlots is the number of MADs that can arrive at once: more than the client's outstanding requests, since answers
	// to earlier tries arrive as well.
	recvSlots = 64

	recvLen = hca.GRHLen + mad.Len
)

// queue is a UD queue pair that exchanges MADs with the subnet administrator. One goroutine uses it.
type queue struct {
	dev      endpoint.Session
	port     uint8
	pd       hca.PD
	mr       hca.MR // the send slots, then the receive slots
	by       *endpoint.Caller
	to       hca.AH            // the present handle of the SA; nil: none
	former   []hca.AH          // handles that posted requests may still use
	free     []uint64          // send slots
	sent     [sendSlots]uint64 // the transaction in each send slot
	wcs      [sendSlots + recvSlots]hca.WC
	teardown []func() error // in the order of creation
}

// openQueue opens a queue pair for MADs, without receives. On error nothing is left behind. It blocks as long as its
// verbs.
func openQueue(dev endpoint.Session, num uint8, pkeyIndex uint16) (*queue, error) {
	q := &queue{dev: dev, port: num}
	if err := q.build(pkeyIndex); err != nil {
		return nil, errors.Join(fmt.Errorf("open the queue pair to the subnet administrator: %w", err), q.close())
	}
	return q, nil
}

func (q *queue) build(pkeyIndex uint16) (err error) {
	if q.pd, err = q.dev.AllocPD(); err != nil {
		return err
	}
	q.teardown = append(q.teardown, q.pd.Close)
	if q.mr, err = q.pd.AllocMR(sendSlots*mad.Len+recvSlots*recvLen, hca.AccessLocalWrite); err != nil {
		return err
	}
	q.teardown = append(q.teardown, q.mr.Close, q.closeHandles)
	cq, err := q.dev.CreateCQ(hca.CQSpec{Entries: sendSlots + recvSlots})
	if err != nil {
		return err
	}
	q.teardown = append(q.teardown, cq.Close)
	qp, err := q.pd.CreateQP(hca.QPSpec{SendWRs: sendSlots, RecvWRs: recvSlots, SendSGEs: 1, RecvSGEs: 1}, cq, cq)
	if err != nil {
		return err
	}
	q.teardown = append(q.teardown, qp.Close)
	q.by = endpoint.NewCaller(q.dev, qp, cq)
	if err := endpoint.Activate(qp, port.Plan{Port: q.port, PKeyIndex: pkeyIndex}, mad.QKeyGSI); err != nil {
		return err
	}
	for i := range uint64(sendSlots) {
		q.free = append(q.free, i)
	}
	return nil
}

// Receives have the IDs from sendSlots on; a send has that of its slot.
func receiveIDs() (ids []uint64) {
	for i := range uint64(recvSlots) {
		ids = append(ids, sendSlots+i)
	}
	return ids
}

func (q *queue) recvSlot(id uint64) int { return sendSlots*mad.Len + int(id-sendSlots)*recvLen }

// receive posts receives.
func (q *queue) receive(ids ...uint64) error {
	wrs := make([]hca.RecvWR, len(ids))
	for i, id := range ids {
		wrs[i] = hca.RecvWR{ID: id, SGList: []hca.SGE{q.mr.SGE(q.recvSlot(id), recvLen)}}
	}
	_, err := q.by.Queue.PostRecv(wrs)
	return err
}

// send posts a MAD. It returns false if that could not be posted, and an error if the queue pair must be opened again.
func (q *queue) send(s sa.Send) (posted bool, err error) {
	if len(q.free) == 0 {
		return false, nil
	}
	spec := hca.AHSpec{Port: q.port, DLID: s.DLID, SL: s.SL}
	if q.to == nil || q.to.Spec() != spec {
		to, err := q.pd.CreateAH(spec)
		if err != nil {
			return false, fmt.Errorf("create an address handle of the subnet administrator: %w", err)
		}
		if q.to != nil {
			q.former = append(q.former, q.to)
		}
		q.to = to
	}
	slot := q.free[len(q.free)-1]
	at := int(slot) * mad.Len
	copy(q.mr.Bytes()[at:at+mad.Len], s.MAD)
	wr := hca.SendWR{
		ID: slot, SGList: []hca.SGE{q.mr.SGE(at, mad.Len)}, Flags: hca.SendSignaled,
		UD: hca.UDDest{AH: q.to, QPN: s.QPN, QKey: s.QKey},
	}
	if _, err := q.by.Queue.PostSend([]hca.SendWR{wr}); err != nil {
		return false, fmt.Errorf("send a request to the subnet administrator: %w", err)
	}
	q.free = q.free[:len(q.free)-1]
	q.sent[slot] = s.TID
	return true, nil
}

// poll passes on what has completed: MADs, which the client copies, and sends that have failed. It returns
// how many requests completed, and an error if the queue pair must be opened again.
func (q *queue) poll(pass func(sa.Event)) (n int, err error) {
	n, err = q.by.CQ.Poll(q.wcs[:])
	var again []uint64
	for _, wc := range q.wcs[:n] {
		if wc.Status != hca.WCSuccess {
			err = errors.Join(err, fmt.Errorf("request of the queue pair to the subnet administrator: %s", wc.Status))
		}
		switch {
		case wc.ID < sendSlots:
			q.free = append(q.free, wc.ID)
			if wc.Status != hca.WCSuccess {
				pass(sa.SendFailed{TID: q.sent[wc.ID]})
			}
		case wc.Status == hca.WCSuccess:
			at := q.recvSlot(wc.ID)
			length := min(int(wc.ByteLen), recvLen)
			pass(sa.Received{
				MAD:  q.mr.Bytes()[at+hca.GRHLen : at+max(length, hca.GRHLen)],
				SLID: wc.SLID, SrcQPN: wc.SrcQPN,
			})
			again = append(again, wc.ID)
		}
	}
	if err == nil && len(again) > 0 {
		err = q.receive(again...)
	}
	if len(q.free) == sendSlots && len(q.former) > 0 {
		err = errors.Join(err, q.closeFormer())
	}
	return n, err
}

// flush waits until no MAD is in the send queue, at most until a time. It ignores what arrives.
func (q *queue) flush(until time.Time) error {
	for len(q.free) < sendSlots && time.Now().Before(until) {
		if err := q.by.CQ.Arm(); err != nil {
			return err
		}
		n, err := q.poll(func(sa.Event) {})
		if err != nil {
			return err
		}
		if n > 0 {
			continue
		}
		if err := q.by.CQ.Wait(until); err != nil {
			return err
		}
	}
	return nil
}

// closeFormer closes the handles of former subnet managers, once no posted request uses them.
func (q *queue) closeFormer() error {
	var errs []error
	for _, ah := range q.former {
		errs = append(errs, ah.Close())
	}
	q.former = nil
	return errors.Join(errs...)
}

func (q *queue) closeHandles() error {
	err := q.closeFormer()
	if q.to != nil {
		err = errors.Join(err, q.to.Close())
	}
	return err
}

// close closes everything, continues after a failure, and reports all failures.
func (q *queue) close() error {
	var errs []error
	for _, undo := range slices.Backward(q.teardown) {
		errs = append(errs, undo())
	}
	q.teardown = nil
	return errors.Join(errs...)
}
