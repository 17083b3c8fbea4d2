//go:build cgo && linux

package verbs

// #include "shim.h"
import "C"

import (
	"errors"
	"sync"
	"sync/atomic"
	"syscall"

	"ipoibd/hca"
)

// QP is a UD queue pair.
type QP struct {
	life
	pd             *PD
	num            hca.QPN
	id             hca.ObjectID
	spec           hca.QPSpec
	sendCQ, recvCQ *CQ
	qp             *C.struct_ibv_qp

	send     side[hca.SendWR]
	recv     side[hca.RecvWR]
	sender   sender
	receiver receiver

	modifyMu sync.Mutex // one Modify at a time
	qkey     atomic.Uint32
	groups   groups
}

var _ hca.QP = (*QP)(nil)

// maxQueues is the number of queues of one QP: libibverbs has no UD queue pair that spreads
// over several CQs and keeps one number.
const maxQueues = 1

// CreateQP implements [hca.PD].
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	if spec.Queues < 0 || spec.Queues > maxQueues || spec.LRO || spec.BlockLoopback {
		return nil, refused("create_qp", p.dev.attr.Name, hca.ErrInvalid)
	}
	in, a := func(n, limit int) bool { return n >= 1 && n <= limit }, &p.dev.attr
	if !in(spec.SendWRs, a.MaxQPWR) || !in(spec.RecvWRs, a.MaxQPWR) ||
		!in(spec.SendSGEs, a.MaxSGE) || !in(spec.RecvSGEs, a.MaxSGE) {
		return nil, refused("create_qp", p.dev.attr.Name, hca.ErrRange)
	}
	q := &QP{pd: p, spec: spec}
	q.sendCQ, _ = sendCQ.(*CQ)
	q.recvCQ, _ = recvCQ.(*CQ)
	for _, c := range []*CQ{q.sendCQ, q.recvCQ} {
		if c == nil || c.dev != p.dev || c.enter() != nil {
			return nil, refused("create_qp", p.dev.attr.Name, hca.ErrInvalid)
		}
		defer c.leave()
	}
	if err := p.enter(); err != nil {
		return nil, refused("create_qp", p.dev.attr.Name, err)
	}
	defer p.leave()
	return q.create()
}

// create creates the QP. The caller has entered its PD and CQs.
func (q *QP) create() (hca.QP, error) {
	if err := q.sender.init(q); err != nil {
		return nil, err
	}
	q.receiver = newReceiver(min(q.spec.RecvWRs, maxPost), q.spec.RecvSGEs)
	gen := generations.Add(1)
	qp, err := C.shim_create_qp(q.pd.pd, q.sendCQ.cq, q.recvCQ.cq, C.struct_ibv_qp_cap{
		max_send_wr: C.uint32_t(q.spec.SendWRs), max_send_sge: C.uint32_t(q.sender.each),
		max_recv_wr: C.uint32_t(q.spec.RecvWRs), max_recv_sge: C.uint32_t(q.spec.RecvSGEs),
	}, C.uint32_t(gen))
	if qp == nil {
		q.free()
		return nil, failedNull("create_qp", q.pd.dev.attr.Name, err)
	}
	q.qp, q.num = qp, hca.QPN(qp.qp_num)
	q.id = hca.ObjectID{Kind: hca.KindQP, Num: uint32(q.num), Generation: gen}
	q.makeSides()
	q.gate(hca.QPReset)
	q.sendCQ.attach(q)
	for _, parent := range []*life{&q.pd.life, &q.sendCQ.life, &q.recvCQ.life} {
		parent.adopt()
	}
	return q, nil
}

// makeSides sets up the two queues for posting.
func (q *QP) makeSides() {
	s, r := &q.sender, &q.receiver
	q.send.verb, q.send.fill, q.send.post = verbPostSend, s.fill, s.post
	q.recv.verb, q.recv.fill = verbPostRecv, r.fill
	q.recv.post = func(n int) (int, syscall.Errno) {
		p := C.shim_post_recv(q.qp, &r.wrs[0], C.int(n))
		return int(p.taken), errno(p.err)
	}
}

// free frees the memory of both queues.
func (q *QP) free() {
	q.receiver.free()
	q.sender.free()
}

// ID implements [hca.QP].
func (q *QP) ID() hca.ObjectID { return q.id }

// Num implements [hca.QP].
func (q *QP) Num() hca.QPN { return q.num }

// Spec implements [hca.QP].
func (q *QP) Spec() hca.QPSpec { return q.spec }

// Close implements [hca.QP].
func (q *QP) Close() error {
	if q.groups.any() {
		return refused("destroy_qp", q.num.String(), hca.ErrBusy)
	}
	return refused("destroy_qp", q.num.String(), q.close(func() error {
		err := failed("destroy_qp", q.num.String(), errno(C.shim_destroy_qp(q.qp)))
		if err == nil || errors.Is(err, hca.ErrIO) {
			q.purge()
			q.sendCQ.detach(q)
			q.free()
		}
		return err
	}, &q.pd.life, &q.sendCQ.life, &q.recvCQ.life))
}

// purge removes the QP's completions from its CQs.
func (q *QP) purge() {
	q.sendCQ.purge(q)
	q.recvCQ.purge(q)
}
