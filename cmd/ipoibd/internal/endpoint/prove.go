package endpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"ipoibd/hca"
)

const (
	// proofProbes is how many probes must stay unanswered to prove a freeze: more
	// than are lost by chance.
	proofProbes = 3
	// proofLimit is how long Prove waits for each probe: a thousand times as long as
	// a probe usually takes.
	proofLimit = 250 * time.Millisecond
	// proofBytes is the length of a probe. Its content does not matter: no one else
	// knows the proof's Q_Key.
	proofBytes = 8
)

// proof is a queue pair with its own CQs and memory. It sends to itself and carries nothing else. It
// has as many queues as the endpoint's queue pair, so that every lane is probed.
type proof struct {
	ep    *Endpoint
	mr    hca.MR
	to    hca.UDDest
	lanes []proofLane
}

// proofLane is one queue of a proof.
type proofLane struct {
	by      *Caller
	limited bool // a probe cannot be received, see [port.Plan]
	slots   int  // first probe's buffer in the memory of the proof
	answers [proofProbes]struct{ sent, received bool }
}

// Prove reports whether the device has frozen: whether all probes through one queue of a fresh queue
// pair with fresh CQs stay unanswered, although the port is active and the wire was never
// full (R8). It does not touch the endpoint's own queue pair. It stops at the
// first verb that fails, a post or poll that hangs included, and returns its error. Unless the device
// has frozen, errors of releasing the proof's objects count as well; those that stay busy are released
// with the endpoint. Prove blocks as long as its verbs, and proofLimit for each unanswered
// probe.
func (e *Endpoint) Prove() (frozen bool, err error) {
	p := &proof{ep: e}
	defer func() {
		if closeErr := e.proof.close(); !frozen { // else the reset releases them
			err = errors.Join(err, closeErr)
		}
	}()
	if err := p.build(); err != nil {
		return false, fmt.Errorf("create a queue pair to prove a freeze: %w", err)
	}
	blocked := e.session.WireBlocked()
	answered := true
	for i := 0; answered && i < len(p.lanes); i++ {
		l := &p.lanes[i]
		if err := l.by.Do(func() (err error) { answered, err = p.probe(l); return err }); err != nil {
			return false, err
		}
	}
	if answered {
		return false, nil
	}
	port, err := e.session.QueryPort(e.Spec.Plan.Port)
	return err == nil && port.State == hca.PortActive && e.session.WireBlocked() == blocked, err
}

func (p *proof) build() (err error) {
	e, n := p.ep, len(p.ep.Queues)
	if p.mr, err = e.pd.AllocMR(n*proofProbes*(hca.GRHLen+proofBytes), hca.AccessLocalWrite); err != nil {
		return err
	}
	e.proof.add(p.mr.Close)
	cqs := make([]hca.CQPair, n)
	for i := range cqs {
		cq, err := e.session.CreateCQ(hca.CQSpec{Entries: 2 * proofProbes})
		if err != nil {
			return err
		}
		e.proof.add(cq.Close)
		cqs[i] = hca.CQPair{Send: cq, Recv: cq}
	}
	spec := hca.QPSpec{Queues: n, SendWRs: proofProbes, RecvWRs: proofProbes, SendSGEs: 1, RecvSGEs: 1}
	qp, queues, err := hca.CreateQueues(e.pd, spec, cqs)
	if err != nil {
		return err
	}
	e.proof.add(qp.Close)
	to, err := p.handle()
	if err != nil {
		return err
	}
	// The top bit marks controlled Q_Keys (IBA 10.2.5), which an HCA may refuse.
	p.to = hca.UDDest{AH: to, QPN: qp.Num(), QKey: hca.QKey(rand.Uint32() &^ (1 << 31))}
	if err := Activate(qp, e.Spec.Plan, p.to.QKey); err != nil {
		return err
	}
	for i, q := range queues {
		p.lanes = append(p.lanes, proofLane{by: NewCaller(e.session, q, cqs[i].Send), limited: e.Spec.Plan.Limited, slots: i * proofProbes})
	}
	return nil
}

// handle returns a handle of this port, by the LID that it has now: the endpoint's may lead to a former one.
func (p *proof) handle() (hca.AH, error) {
	plan := p.ep.Spec.Plan
	if plan.InfiniBand() {
		attr, err := p.ep.session.QueryPort(plan.Port)
		if err != nil {
			return nil, err
		}
		plan.LID = hca.LID(attr.LID)
	}
	ah, err := p.ep.pd.CreateAH(plan.SelfAH())
	if err == nil {
		p.ep.proof.add(ah.Close)
	}
	return ah, err
}

// sge returns n bytes of the buffer of probe i of a lane, which is sent from the buffer that
// receives it.
func (p *proof) sge(l *proofLane, i, off, n int) hca.SGE {
	return p.mr.SGE((l.slots+i)*(hca.GRHLen+proofBytes)+off, n)
}

// probe sends probes through a lane, one after the other, until one is answered.
func (p *proof) probe(l *proofLane) (answered bool, err error) {
	recvs := make([]hca.RecvWR, proofProbes)
	for i := range recvs {
		recvs[i] = hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{p.sge(l, i, 0, hca.GRHLen+proofBytes)}}
	}
	_, err = l.by.Queue.PostRecv(recvs)
	for i := 0; i < proofProbes && !answered && err == nil; i++ {
		wr := hca.SendWR{
			ID:     proofProbes + uint64(i),
			SGList: []hca.SGE{p.sge(l, i, hca.GRHLen, proofBytes)},
			UD:     p.to,
			Flags:  hca.SendSignaled,
		}
		if _, err = l.by.Queue.PostSend([]hca.SendWR{wr}); err == nil {
			answered, err = l.await(time.Now().Add(proofLimit))
		}
	}
	return answered, err
}

// await waits for an answer to any probe. It polls once more before it gives up, in case this process
// was stopped in the meantime.
func (l *proofLane) await(until time.Time) (answered bool, err error) {
	for {
		late := !time.Now().Before(until)
		if err := l.by.CQ.Arm(); err != nil {
			return false, err
		}
		answered, err := l.poll()
		if answered || late || err != nil {
			return answered, err
		}
		if err := l.by.CQ.Wait(until); err != nil {
			return false, err
		}
	}
}

// poll polls for completions and reports whether any probe was both sent and received, if it can be.
// A request that failed is an answer too: a frozen device completes nothing.
func (l *proofLane) poll() (answered bool, err error) {
	var wcs [2 * proofProbes]hca.WC
	n, err := l.by.CQ.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		a := &l.answers[wc.ID%proofProbes]
		if wc.ID < proofProbes {
			a.received = true
		} else {
			a.sent = true
		}
		failed := wc.Status != hca.WCSuccess
		answered = answered || failed || a.sent && (a.received || l.limited)
	}
	return answered, err
}
