package device

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

// proof is a queue pair with its own CQ and memory. It sends to itself and carries
// nothing else.
type proof struct {
	ep *Endpoint
	cq hca.CQ
	qp hca.QP
	mr hca.MR
	to hca.UDDest

	answers [proofProbes]struct{ sent, received bool }
}

// Prove reports whether the device has frozen: whether all probes through a fresh
// queue pair and CQ stay unanswered, although the port is active and the wire was never
// full (R8). It does not touch the endpoint's own queue pair. It stops at the
// first verb that fails and returns its error. Unless the device has frozen, errors of
// releasing the proof's objects count as well; those that stay busy are released with
// the endpoint. Prove blocks as long as its verbs, and proofLimit for each unanswered
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
	for i := range proofProbes {
		answered, err := p.probe(i)
		if answered || err != nil {
			return false, err
		}
	}
	port, err := e.session.QueryPort(e.Spec.Plan.Port)
	return err == nil && port.State == hca.PortActive && e.session.WireBlocked() == blocked, err
}

func (p *proof) build() (err error) {
	e := p.ep
	if p.mr, err = e.pd.AllocMR(proofProbes*(hca.GRHLen+proofBytes), hca.AccessLocalWrite); err != nil {
		return err
	}
	e.proof.add(p.mr.Close)
	if p.cq, err = e.session.CreateCQ(hca.CQSpec{Entries: 2 * proofProbes}); err != nil {
		return err
	}
	e.proof.add(p.cq.Close)
	spec := hca.QPSpec{SendWRs: proofProbes, RecvWRs: proofProbes, SendSGEs: 1, RecvSGEs: 1}
	if p.qp, err = e.pd.CreateQP(spec, p.cq, p.cq); err != nil {
		return err
	}
	e.proof.add(p.qp.Close)
	// The top bit marks controlled Q_Keys (IBA 10.2.5), which an HCA may refuse.
	p.to = hca.UDDest{AH: e.self, QPN: p.qp.Num(), QKey: hca.QKey(rand.Uint32() &^ (1 << 31))}
	if err := activate(p.qp, e.Spec.Plan, p.to.QKey); err != nil {
		return err
	}
	recvs := make([]hca.RecvWR, proofProbes)
	for i := range recvs {
		recvs[i] = hca.RecvWR{ID: uint64(i), SGList: []hca.SGE{p.sge(i, 0, hca.GRHLen+proofBytes)}}
	}
	_, err = p.qp.PostRecv(recvs)
	return err
}

// sge returns n bytes of the buffer of probe i, which is sent from the buffer that
// receives it.
func (p *proof) sge(i, off, n int) hca.SGE {
	return p.mr.SGE(i*(hca.GRHLen+proofBytes)+off, n)
}

// probe sends probe i and waits for an answer to any probe. It polls once more before
// it gives up, in case this process was stopped in the meantime.
func (p *proof) probe(i int) (answered bool, err error) {
	wr := hca.SendWR{ID: proofProbes + uint64(i), SGList: []hca.SGE{p.sge(i, hca.GRHLen, proofBytes)}, UD: p.to, Flags: hca.SendSignaled}
	if _, err := p.qp.PostSend([]hca.SendWR{wr}); err != nil {
		return false, err
	}
	for until := time.Now().Add(proofLimit); ; {
		late := !time.Now().Before(until)
		if err := p.cq.Arm(); err != nil {
			return false, err
		}
		answered, err := p.poll()
		if answered || late || err != nil {
			return answered, err
		}
		if err := p.cq.Wait(until); err != nil {
			return false, err
		}
	}
}

// poll polls for completions and reports whether any probe was both sent and received.
// A request that failed is an answer too: a frozen device completes nothing.
func (p *proof) poll() (answered bool, err error) {
	var wcs [2 * proofProbes]hca.WC
	n, err := p.cq.Poll(wcs[:])
	for _, wc := range wcs[:n] {
		a := &p.answers[wc.ID%proofProbes]
		if wc.ID < proofProbes {
			a.received = true
		} else {
			a.sent = true
		}
		failed := wc.Status != hca.WCSuccess
		answered = answered || failed || a.sent && a.received
	}
	return answered, err
}
