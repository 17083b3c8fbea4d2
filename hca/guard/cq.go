package guard

import (
	"slices"
	"sync"
	"time"

	"ipoibd/hca"
)

// CQ is a guarded [hca.CQ].
type CQ struct {
	object
	inner hca.CQ
	id    hca.ObjectID

	mu     sync.Mutex
	queues []*queue // the work queues that complete here
}

var _ hca.CQ = (*CQ)(nil)

// queue holds the posted requests of one work queue of a QP.
type queue struct {
	qpn  hca.QPN
	op   hca.WCOpcode
	book book // guarded by the mu of the queue's CQ
}

// CreateCQ implements [hca.Device].
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	return create[hca.CQ](d, verb{name: "create_cq", on: []*object{&d.self}}, func() (hca.CQ, error) {
		inner, err := d.inner.CreateCQ(spec)
		if err != nil {
			return nil, err
		}
		return d.newCQ(inner), nil
	})
}

func (d *Device) newCQ(inner hca.CQ) *CQ {
	c := &CQ{inner: inner, id: newID(inner.ID())}
	c.object = object{
		dev: d, verb: "destroy_cq", close: inner.Close, parents: []*object{&d.self},
		onGone: func() {
			delete(d.registry.cqs, c)
			delete(d.registry.ids, inner.ID())
		},
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.registry.cqs[c] = struct{}{}
	d.registry.ids[inner.ID()] = c.id
	hold(c.parents)
	return c
}

// ID implements [hca.CQ].
func (c *CQ) ID() hca.ObjectID { return c.id }

// Close implements [hca.CQ].
func (c *CQ) Close() error { return c.release() }

// Wake implements [hca.CQ].
func (c *CQ) Wake() { c.inner.Wake() }

// Arm implements [hca.CQ].
func (c *CQ) Arm() error {
	if c.dev.failure.Load() != nil {
		return c.drained()
	}
	return c.dev.note(c.inner.Arm())
}

// Wait implements [hca.CQ].
func (c *CQ) Wait(until time.Time) error {
	if c.dev.failure.Load() != nil {
		return c.drained()
	}
	err := c.dev.note(c.inner.Wait(until))
	if c.dev.failure.Load() != nil {
		return nil // Poll reports the failure
	}
	return err
}

// Poll implements [hca.CQ].
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	for c.dev.failure.Load() == nil {
		n, err := c.inner.Poll(wc)
		kept := c.settle(wc[:n])
		switch {
		case kept > 0 || n == 0 && err == nil:
			return kept, err
		case err != nil:
			if err = c.dev.note(err); c.dev.failure.Load() == nil {
				return 0, err
			}
		}
	}
	return c.flush(wc)
}

// settle marks the requests of completions as done, and removes the completions that match
// no request. It returns how many are left.
func (c *CQ) settle(wcs []hca.WC) (kept int) {
	if len(wcs) == 0 {
		return 0
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wcs {
		if !c.complete(&wcs[i]) {
			c.dev.counts.staleWCs.Add(1)
			continue
		}
		if kept != i {
			wcs[kept] = wcs[i]
		}
		kept++
	}
	return kept
}

// complete marks the request of a completion as done. It returns false if no book has the
// request. The opcode of a completion in error is invalid, so it is ignored. c.mu is held.
func (c *CQ) complete(wc *hca.WC) bool {
	success := wc.Status == hca.WCSuccess
	for _, q := range c.queues {
		if q.qpn == wc.QPN && (!success || q.op == wc.Opcode) && q.book.complete(wc.ID, success) {
			return true
		}
	}
	return false
}

// flush returns the completions of the failed state, then its error (R18).
func (c *CQ) flush(wc []hca.WC) (n int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		for ; n < len(wc); n++ {
			id, ok := q.book.pop()
			if !ok {
				break
			}
			wc[n] = hca.WC{ID: id, Status: hca.WCWRFlushErr, Opcode: q.op, QPN: q.qpn}
		}
	}
	c.dev.counts.flushed.Add(uint64(n))
	if n == 0 {
		return 0, c.dev.Err()
	}
	return n, nil
}

// drained returns the error of the failed state, or nil while there are completions to poll.
func (c *CQ) drained() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, q := range c.queues {
		if !q.book.empty() {
			return nil
		}
	}
	return c.dev.Err()
}

// attach makes the requests of a queue complete here. Send queues are searched first for the
// request of a completion in error.
func (c *CQ) attach(q *queue, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if first {
		c.queues = slices.Insert(c.queues, 0, q)
	} else {
		c.queues = append(c.queues, q)
	}
}

// detach removes a queue and its requests.
func (c *CQ) detach(q *queue) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.queues = slices.DeleteFunc(c.queues, func(x *queue) bool { return x == q })
}
