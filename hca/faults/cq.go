package faults

import (
	"sync/atomic"
	"time"

	"ipoibd/hca"
)

// CQ is a completion queue of a [Device].
type CQ struct {
	hca.CQ
	dev     *Device
	void    atomic.Bool // CQOverrun has fired
	stopped atomic.Bool // CompletionsStop has fired
	held    bool        // CQSmall has fired: the backend is not polled
}

var _ hca.CQ = (*CQ)(nil)

// CreateCQ implements [hca.Device].
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	if err := d.enter("create_cq"); err != nil {
		return nil, err
	}
	small := d.busy.Load() && d.fireOne(CQSmall)
	if small {
		spec.Entries = 1
	}
	inner, err := d.Device.CreateCQ(spec)
	if err != nil {
		return nil, err
	}
	return &CQ{CQ: inner, dev: d, held: small}, nil
}

// Close implements [hca.CQ].
func (c *CQ) Close() error {
	c.dev.hang("destroy_cq")
	return c.CQ.Close()
}

// silent reports whether the CQ no longer delivers completions.
func (c *CQ) silent() bool { return c.stopped.Load() || c.dev.mute.Load() }

// failed reports whether a fault has ended the use of the CQ.
func (c *CQ) failed() bool { return c.void.Load() || c.stopped.Load() || c.held }

// Arm implements [hca.CQ]. A lost completion does not wake Wait.
func (c *CQ) Arm() error {
	switch {
	case c.void.Load():
		return hca.ErrCQ
	case c.silent():
		return nil
	}
	return c.CQ.Arm()
}

// Wait implements [hca.CQ].
func (c *CQ) Wait(until time.Time) error {
	if c.void.Load() {
		return hca.ErrCQ
	}
	err := c.CQ.Wait(until)
	if err == nil && c.void.Load() {
		return hca.ErrCQ
	}
	return err
}

// Poll implements [hca.CQ].
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	switch {
	case c.void.Load():
		return 0, hca.ErrCQ
	case c.held:
		return c.CQ.Poll(nil)
	}
	c.dev.hang("poll_cq")
	n, err := c.CQ.Poll(wc)
	switch {
	case c.silent():
		return 0, err
	case n == 0 || !c.dev.busy.Load():
		return n, err
	}
	kept := c.review(wc[:n])
	if c.void.Load() {
		return 0, hca.ErrCQ
	}
	return kept, err
}

// review removes the completions that faults suppress, falsifies others, and returns how
// many are left.
func (c *CQ) review(wcs []hca.WC) (kept int) {
	d := c.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range wcs {
		c.fireFault()
		if c.failed() {
			break
		}
		if q := d.qps[wcs[i].QPN]; q != nil && !q.review(c, &wcs[i]) {
			continue
		}
		wcs[kept] = wcs[i]
		kept++
	}
	d.recount()
	return kept
}

// fireFault fires a fault whose occasion is a polled completion. Device.mu is held.
func (c *CQ) fireFault() {
	k, ok := c.dev.plan.fireFirst(CQOverrun, CQError, CompletionsStop)
	if !ok {
		return
	}
	switch k {
	case CQOverrun:
		c.void.Store(true)
		c.Wake()
		fallthrough
	case CQError:
		c.dev.queue.put(hca.AsyncEvent{Type: hca.EventCQErr, On: c.ID()})
	default:
		c.stopped.Store(true)
	}
}
