package softqp

import "ipoibd/hca"

// CQ is a completion queue without a lock. A completion that finds it full puts it in
// error permanently: queued and later completions are lost.
type CQ struct {
	queue  queue[hca.WC]
	armed  bool
	failed bool
}

// NewCQ returns a CQ with this number of entries, at least 1.
func NewCQ(entries int) CQ { return CQ{queue: newQueue[hca.WC](entries)} }

// Signal is what the caller of Push must report.
type Signal uint8

// Signals.
const (
	SignalNone    Signal = iota
	SignalArmed          // the CQ was armed: wake the waiter
	SignalOverrun        // the CQ has just failed
)

// Push queues completions in order.
func (c *CQ) Push(wcs []hca.WC) Signal {
	if c.failed || len(wcs) == 0 {
		return SignalNone
	}
	for i := range wcs {
		if c.queue.full() {
			c.failed = true
			c.queue.clear()
			return SignalOverrun
		}
		*c.queue.push() = wcs[i]
	}
	if !c.armed {
		return SignalNone
	}
	c.armed = false
	return SignalArmed
}

// Len returns the number of completions that Poll can return.
func (c *CQ) Len() int { return c.queue.len() }

// Poll moves completions into wc and returns how many. It returns hca.ErrCQ if the CQ is
// in error.
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	if c.failed {
		return 0, hca.ErrCQ
	}
	n := min(len(wc), c.queue.len())
	for i := range n {
		wc[i] = *c.queue.at(0)
		c.queue.pop()
	}
	return n, nil
}

// Arm makes the next Push return SignalArmed. It returns hca.ErrCQ if the CQ is in error.
func (c *CQ) Arm() error {
	if c.failed {
		return hca.ErrCQ
	}
	c.armed = true
	return nil
}

// Remove removes the completions of a QP that was reset or destroyed (IBA 10.3.1.2)
// and keeps the order of the others.
func (c *CQ) Remove(qpn hca.QPN) {
	for n := c.queue.len(); n > 0; n-- {
		wc := *c.queue.at(0)
		c.queue.pop()
		if wc.QPN != qpn {
			*c.queue.push() = wc
		}
	}
}
