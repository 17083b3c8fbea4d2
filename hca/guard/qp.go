package guard

import (
	"errors"
	"slices"
	"sync"

	"ipoibd/hca"
)

// Queue is a guarded [hca.Queue].
type Queue struct {
	device *Device
	inner  hca.Queue
	out    []hca.SendWR // requests of the current PostSend, with the backend's handles
}

// QP is a guarded [hca.QP].
type QP struct {
	object
	*Queue
	inner  hca.QP
	queues []hca.Queue
	id     hca.ObjectID
	groups groups
}

var (
	_ hca.QP           = (*QP)(nil)
	_ hca.QueueCreator = (*PD)(nil)
)

// CreateQP implements [hca.PD].
func (p *PD) CreateQP(spec hca.QPSpec, sendCQ, recvCQ hca.CQ) (hca.QP, error) {
	qp, _, err := p.CreateQueues(spec, []hca.CQPair{{Send: sendCQ, Recv: recvCQ}})
	return qp, err
}

// CreateQueues implements [hca.QueueCreator].
func (p *PD) CreateQueues(spec hca.QPSpec, cqs []hca.CQPair) (hca.QP, []hca.Queue, error) {
	d, parents := p.dev, []*object{&p.object}
	var pairs []hca.CQPair // the backend's
	for _, pair := range cqs {
		s, okS := pair.Send.(*CQ)
		r, okR := pair.Recv.(*CQ)
		if !okS || !okR || s.dev != d || r.dev != d {
			return nil, nil, d.wrap("create_qp", hca.ErrInvalid)
		}
		parents = append(parents, &s.object, &r.object)
		pairs = append(pairs, hca.CQPair{Send: s.inner, Recv: r.inner})
	}
	q, err := create[*QP](d, verb{name: "create_qp", on: parents}, func() (*QP, error) {
		inner, queues, err := hca.CreateQueues(p.inner, spec, pairs)
		if err != nil {
			return nil, err
		}
		q := &QP{inner: inner, id: newID(inner.ID())}
		for _, x := range queues {
			q.queues = append(q.queues, &Queue{device: d, inner: x, out: make([]hca.SendWR, hca.Batch)})
		}
		q.Queue, q.queues[0] = q.queues[0].(*Queue), q
		q.object = object{
			dev: d, verb: "destroy_qp", close: q.closeInner, parents: parents,
			onGone: func() { delete(d.ids, inner.ID()) },
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ids[inner.ID()] = q.id
		hold(parents)
		return q, nil
	})
	if err != nil {
		return nil, nil, err
	}
	return q, q.queues, nil
}

// ID implements [hca.QP].
func (q *QP) ID() hca.ObjectID { return q.id }

// Num implements [hca.Queue].
func (q *Queue) Num() hca.QPN { return q.inner.Num() }

// Spec implements [hca.Queue].
func (q *Queue) Spec() hca.QPSpec { return q.inner.Spec() }

// Close implements [hca.QP].
func (q *QP) Close() error { return q.release() }

// closeInner closes the backend's QP. In the failed state it also detaches it, because
// DetachMulticast does not reach the backend then.
func (q *QP) closeInner() error {
	if q.dev.Err() != nil {
		_ = q.groups.detachAll(q.inner) // Close fails if a group is left
	}
	return q.inner.Close()
}

// PostSend implements [hca.Queue].
func (q *Queue) PostSend(wrs []hca.SendWR) (posted int, err error) {
	for {
		if err := q.device.Err(); err != nil {
			return posted, err
		}
		// Copy what fits into out, up to the first handle of another device.
		part := wrs[posted:min(len(wrs), posted+len(q.out))]
		k, foreign := 0, false
		for ; k < len(part); k++ {
			ah, ok := part[k].UD.AH.(*AH)
			if foreign = !ok || ah.dev != q.device; foreign {
				break
			}
			q.out[k] = part[k]
			q.out[k].UD.AH = ah.inner
		}
		n, err := q.inner.PostSend(q.out[:k])
		posted += n
		switch {
		case err != nil:
			return posted, q.device.outcome(err)
		case foreign:
			return posted, hca.ErrInvalid
		case posted == len(wrs):
			return posted, nil
		}
	}
}

// PostRecv implements [hca.Queue].
func (q *Queue) PostRecv(wrs []hca.RecvWR) (int, error) {
	if err := q.device.Err(); err != nil {
		return 0, err
	}
	n, err := q.inner.PostRecv(wrs)
	return n, q.device.outcome(err)
}

// Modify implements [hca.QP].
func (q *QP) Modify(attr hca.QPAttr, mask hca.QPAttrMask) error {
	return q.do(verb{name: "modify_qp", on: []*object{&q.object}}, func() error { return q.inner.Modify(attr, mask) })
}

// Query implements [hca.QP].
func (q *QP) Query() (hca.QPAttr, error) {
	return ask(q.dev, verb{name: "query_qp", on: []*object{&q.object}}, q.inner.Query)
}

// AttachMulticast implements [hca.QP].
func (q *QP) AttachMulticast(g hca.MulticastGroup) error {
	v := verb{name: "attach_mcast", on: []*object{&q.object}}
	if q.dev.attr.Transport == hca.TransportSoftware { // it joins an IP group, for which the kernel takes the rtnl lock
		v.patience, v.host = q.dev.opts.HostTimeout, true
	}
	return q.do(v, func() error { return q.groups.attach(q.inner, g) })
}

// DetachMulticast implements [hca.QP]. In the failed state it succeeds like any release, and
// the backend detaches the QP before it closes it.
func (q *QP) DetachMulticast(g hca.MulticastGroup) error {
	v := verb{name: "detach_mcast", on: []*object{&q.object}}
	err := q.do(v, func() error { return q.groups.detach(q.inner, g) })
	if q.dev.Err() != nil {
		return nil
	}
	return err
}

// do calls a verb that returns only an error.
func (q *QP) do(v verb, f func() error) error {
	_, err := ask(q.dev, v, func() (struct{}, error) { return struct{}{}, f() })
	return err
}

// groups are the multicast groups to which a QP is attached in the backend.
type groups struct {
	mu   sync.Mutex
	list []hca.MulticastGroup
}

// attach attaches the QP in the backend and records the group, even if the backend returns
// late.
func (g *groups) attach(inner hca.QP, to hca.MulticastGroup) error {
	err := inner.AttachMulticast(to)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.list = append(g.list, to)
	}
	return err
}

// detach undoes attach.
func (g *groups) detach(inner hca.QP, from hca.MulticastGroup) error {
	err := inner.DetachMulticast(from)
	if err == nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.list = slices.DeleteFunc(g.list, func(x hca.MulticastGroup) bool { return x == from })
	}
	return err
}

// detachAll detaches the QP from the remaining groups, because a backend does not close a QP
// that is attached.
func (g *groups) detachAll(inner hca.QP) error {
	g.mu.Lock()
	left := slices.Clone(g.list)
	g.mu.Unlock()
	var errs []error
	for _, x := range left {
		errs = append(errs, g.detach(inner, x))
	}
	return errors.Join(errs...)
}
