package memsubnet

import (
	"slices"
	"sync"

	"ipoibd/hca"
)

// QP is a UD queue pair.
type QP struct {
	hca.QP
	pd *PD

	mu       sync.Mutex
	receives map[uint64]receive // posted, by their IDs at the software HCA
	attached map[hca.GID]uint16 // MLIDs of the groups to which the QP is attached
}

// receive is a posted receive. Its ID at the software HCA is unique, which the user's need not be.
type receive struct {
	id   uint64
	list []hca.SGE
}

// CreateQP implements [hca.PD].
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	inner, err := p.PD.CreateQP(spec, unwrap(sendCQ), unwrap(recvCQ))
	if err != nil {
		return nil, err
	}
	q := &QP{QP: inner, pd: p, receives: map[uint64]receive{}, attached: map[hca.GID]uint16{}}
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.dev.qps[q.Num()] = q
	return q, nil
}

// PostSend implements [hca.Queue]. The software HCA needs the handle of a send only during the post.
func (q *QP) PostSend(wrs []hca.SendWR) (int, error) {
	out, port := slices.Clone(wrs), q.pd.dev.port
	for i := range out {
		to := &out[i].UD
		ah, ok := to.AH.(*AH)
		if !ok || ah.pd != q.pd {
			continue // the software HCA refuses it
		}
		inner, err := q.pd.PD.CreateAH(port.subnet.route(port, &ah.spec, to.QPN))
		if err != nil {
			return 0, err
		}
		defer inner.Close()
		to.AH = inner
	}
	return q.QP.PostSend(out)
}

// PostRecv implements [hca.Queue].
func (q *QP) PostRecv(wrs []hca.RecvWR) (int, error) {
	out := slices.Clone(wrs)
	q.mu.Lock()
	for i := range out {
		out[i].ID = q.pd.dev.lastID.Add(1)
		q.receives[out[i].ID] = receive{wrs[i].ID, slices.Clone(wrs[i].SGList)}
	}
	q.mu.Unlock()
	n, err := q.QP.PostRecv(out)
	for i := n; i < len(out); i++ {
		q.take(out[i].ID)
	}
	return n, err
}

// take removes a posted receive.
func (q *QP) take(id uint64) (receive, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	r, ok := q.receives[id]
	delete(q.receives, id)
	return r, ok
}

// Modify implements [hca.QP].
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	err := q.QP.Modify(attr, mask)
	if err == nil && mask&hca.AttrState != 0 && attr.State == hca.QPReset {
		q.mu.Lock()
		defer q.mu.Unlock()
		clear(q.receives)
	}
	return err
}

// AttachMulticast implements [hca.QP]. It refuses a second MLID for one MGID, like rdmavt.
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if _, attached := q.attached[g.MGID]; attached || !g.MGID.IsMulticast() || !isMLID(g.MLID) {
		return &hca.VerbError{Verb: "attach_mcast", On: g.MGID.String(), Err: hca.ErrInvalid}
	}
	err := q.QP.AttachMulticast(q.onFabric(g))
	if err == nil {
		q.attached[g.MGID] = g.MLID
	}
	return err
}

// DetachMulticast implements [hca.QP].
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.QP.DetachMulticast(q.onFabric(g))
	if err == nil {
		delete(q.attached, g.MGID)
	}
	return err
}

// onFabric returns the group of the software HCA.
func (q *QP) onFabric(g hca.MulticastGroup) hca.MulticastGroup {
	s := q.pd.dev.port.subnet
	s.mu.Lock()
	defer s.mu.Unlock()
	return hca.MulticastGroup{MGID: hca.GIDFromAddr(s.groupAddr(group{g.MGID, g.MLID}))}
}

// Close implements [hca.QP].
func (q *QP) Close() error {
	err := q.QP.Close()
	d := q.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.qps[q.Num()] == q {
		delete(d.qps, q.Num())
	}
	return err
}

// CQ is a completion queue.
type CQ struct {
	hca.CQ
	dev *Device
}

// unwrap returns the CQ of the software HCA, which refuses those of others.
func unwrap(cq hca.CQ) hca.CQ {
	if c, ok := cq.(*CQ); ok {
		return c.CQ
	}
	return cq
}

// Poll implements [hca.CQ]. It leaves out completions of receives that a reset has dropped meanwhile.
func (c *CQ) Poll(wcs []hca.WC) (kept int, err error) {
	n, err := c.CQ.Poll(wcs)
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	for i := range wcs[:n] {
		if c.dev.finish(&wcs[i]) {
			wcs[kept] = wcs[i]
			kept++
		}
	}
	return kept, err
}

// finish makes a completion of the software HCA one of InfiniBand. It returns false if nothing waits for it. d.mu is
// held.
func (d *Device) finish(wc *hca.WC) bool {
	if wc.Opcode != hca.WCRecv { // the software HCA also sets it in errors
		return true
	}
	q := d.qps[wc.QPN]
	if q == nil {
		return false
	}
	r, ok := q.take(wc.ID)
	wc.ID = r.id
	if !ok || wc.Status != hca.WCSuccess {
		return ok
	}
	var area [hca.GRHLen]byte
	d.visit(r.list, len(area), func(at int, piece []byte) { copy(area[at:], piece) })
	d.port.subnet.finish(wc, &area)
	d.visit(r.list, len(area), func(at int, piece []byte) { copy(piece, area[at:]) })
	return true
}
