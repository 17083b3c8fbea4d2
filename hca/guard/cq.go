package guard

import (
	"time"

	"ipoibd/hca"
)

// CQ is a guarded [hca.CQ].
type CQ struct {
	object
	inner hca.CQ
	id    hca.ObjectID
}

var _ hca.CQ = (*CQ)(nil)

// CreateCQ implements [hca.Device].
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	return create[hca.CQ](d, verb{name: "create_cq", on: []*object{&d.self}}, func() (hca.CQ, error) {
		inner, err := d.inner.CreateCQ(spec)
		if err != nil {
			return nil, err
		}
		c := &CQ{inner: inner, id: newID(inner.ID())}
		c.object = object{
			dev: d, verb: "destroy_cq", close: inner.Close, parents: []*object{&d.self},
			onGone: func() {
				delete(d.cqs, c)
				delete(d.ids, inner.ID())
			},
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.cqs[c] = struct{}{}
		d.ids[inner.ID()] = c.id
		hold(c.parents)
		return c, nil
	})
}

// ID implements [hca.CQ].
func (c *CQ) ID() hca.ObjectID { return c.id }

// Close implements [hca.CQ].
func (c *CQ) Close() error { return c.release() }

// Wake implements [hca.CQ].
func (c *CQ) Wake() { c.inner.Wake() }

// Arm implements [hca.CQ].
func (c *CQ) Arm() error {
	if err := c.dev.Err(); err != nil {
		return err
	}
	return c.dev.outcome(c.inner.Arm())
}

// Wait implements [hca.CQ].
func (c *CQ) Wait(until time.Time) error {
	if err := c.dev.Err(); err != nil {
		return err
	}
	err := c.dev.outcome(c.inner.Wait(until))
	if c.dev.Err() != nil {
		return nil // Poll reports the failure
	}
	return err
}

// Poll implements [hca.CQ].
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	if err := c.dev.Err(); err != nil {
		return 0, err
	}
	n, err := c.inner.Poll(wc)
	if n > 0 {
		return n, nil // an error is permanent; the next Poll reports it
	}
	return 0, c.dev.outcome(err)
}
