package soft

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/softqp"
)

// CQ is a completion queue.
type CQ struct {
	dev   *Device
	id    hca.ObjectID
	users int // QPs; guarded by Device.mu

	receives atomic.Bool // of a QP complete here
	waits    atomic.Bool // its owner is in Wait
	lane     *lane       // which its owner receives from; constant once receives is set

	mu     sync.Mutex
	ring   softqp.CQ
	flows  passage
	closed bool

	armed chan struct{} // a completion arrived after Arm
	wake  chan struct{} // Wake was called
	down  chan struct{} // closed, or in error
	timer *time.Timer   // of the one goroutine that waits
	limit *time.Timer   // ends its turn to receive at the deadline of Wait
}

var _ hca.CQ = (*CQ)(nil)

// CreateCQ implements [hca.Device]. It does not block, and does not round up the number of
// entries.
func (d *Device) CreateCQ(spec hca.CQSpec) (hca.CQ, error) {
	if spec.Entries < 1 || spec.Entries > maxCQE {
		return nil, verb("create_cq", d.cfg.Name, hca.ErrRange)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.usable(); err != nil {
		return nil, verb("create_cq", d.cfg.Name, err)
	}
	d.slow.children++
	id := d.newID()
	c := &CQ{
		dev: d, lane: d.lanes[0], id: hca.ObjectID{Kind: hca.KindCQ, Num: id, Generation: id},
		ring:  softqp.NewCQ(spec.Entries),
		armed: make(chan struct{}, 1), wake: make(chan struct{}, 1), down: make(chan struct{}),
	}
	c.limit = time.AfterFunc(time.Hour, func() { c.lane.wire.Interrupt() })
	c.limit.Stop()
	return c, nil
}

// receiveFrom makes the owner receive from a lane, unless it already receives from another one
// for another QP. d.mu is held.
func (c *CQ) receiveFrom(l *lane) {
	if !c.receives.Load() {
		c.lane = l
		c.receives.Store(true)
	}
}

// ID implements [hca.CQ].
func (c *CQ) ID() hca.ObjectID { return c.id }

// push queues completions with one signal.
func (c *CQ) push(wcs []hca.WC) { c.pushFlows(wcs, nil) }

// pushFlows is push for the completions of the messages that have arrived at a queue; nil: there are none.
func (c *CQ) pushFlows(wcs []hca.WC, q *queue) {
	if len(wcs) == 0 && (q == nil || len(q.arrived) == 0) {
		return
	}
	c.mu.Lock()
	if q != nil {
		c.flows.arrive(q)
	}
	signal := c.ring.Push(wcs)
	if signal == softqp.SignalOverrun {
		c.markDown()
	}
	c.mu.Unlock()
	switch signal {
	case softqp.SignalArmed:
		c.signal(c.armed)
	case softqp.SignalOverrun:
		c.dev.lanes[0].counts.add(cqOverrun, 1)
		c.dev.emit(hca.EventCQErr, c.id)
	case softqp.SignalNone:
	}
}

// markDown makes every Wait return from now on. c.mu is held.
func (c *CQ) markDown() {
	select {
	case <-c.down:
	default:
		close(c.down)
		c.interrupt()
	}
}

// purge removes the completions of a QP.
func (c *CQ) purge(n hca.QPN) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ring.Remove(n)
}

// Poll implements [hca.CQ].
func (c *CQ) Poll(wc []hca.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, hca.ErrClosed
	}
	if len(wc) > 0 {
		c.flows.handled()
	}
	n, err := c.ring.Poll(wc)
	if len(wc) > 0 && c.ring.Len() == 0 {
		c.flows.polled = len(c.flows.list)
	}
	return n, err
}

// Arm implements [hca.CQ].
func (c *CQ) Arm() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return hca.ErrClosed
	}
	select { // a wake-up of an earlier Arm is answered by the poll before this one
	case <-c.armed:
	default:
	}
	return c.ring.Arm()
}

// Wait implements [hca.CQ]. A wait for receives reads the transport, unless another wait does.
func (c *CQ) Wait(until time.Time) error {
	if !c.receives.Load() || c.lane.turn.ended.Load() {
		return c.wait(until, nil)
	}
	if c.dev.fastPaths.Load() > 0 {
		c.waits.Store(true)
		defer c.waits.Store(false)
		c.mu.Lock()
		c.flows.handled() // otherwise the owner would not wait
		c.mu.Unlock()
	}
	t := &c.lane.turn
	t.waiting.Add(1)
	if t.standIn.Load() {
		notify(t.wanted)
		c.lane.wire.Interrupt()
	}
	err := c.wait(until, t.free)
	t.waiting.Add(-1)
	if err != errTurn { //nolint:errorlint // it is never wrapped
		return err
	}
	c.lane.receiveFor(c, until)
	select {
	case <-c.down:
		return c.failure()
	default:
	}
	for _, ch := range []chan struct{}{c.armed, c.wake} {
		select {
		case <-ch:
		default:
		}
	}
	return nil
}

// errTurn means that a wait has ended because it has the turn to receive.
var errTurn = errors.New("turn to receive")

// wait waits for one of the reasons to end a Wait, or for the turn to receive.
func (c *CQ) wait(until time.Time, turn <-chan struct{}) error {
	select {
	case <-c.armed:
	case <-c.wake:
	case <-c.down:
		return c.failure()
	case <-c.alarm(until):
	case <-turn:
		return errTurn
	}
	return nil
}

// failure returns why the CQ is down.
func (c *CQ) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return hca.ErrClosed
	}
	return hca.ErrCQ
}

// signaled reports whether there is a reason to end a Wait.
func (c *CQ) signaled() bool {
	select {
	case <-c.down:
		return true
	default:
		return len(c.armed) > 0 || len(c.wake) > 0
	}
}

// signal sends a token to ch. If the CQ's owner reads the transport, signal interrupts that.
func (c *CQ) signal(ch chan struct{}) {
	notify(ch)
	c.interrupt()
}

func (c *CQ) interrupt() {
	if c.receives.Load() && c.lane.turn.reader.Load() == c {
		c.lane.wire.Interrupt()
	}
}

// empty reports whether Poll has nothing to return.
func (c *CQ) empty() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ring.Len() == 0
}

// idle reports whether the owner has handled all completions: there are none, and since then, it has been waiting for more.
func (c *CQ) idle() bool { return c.empty() && c.waits.Load() }

// alarm returns a channel that ticks at the time until, nil for the zero time.
func (c *CQ) alarm(until time.Time) <-chan time.Time {
	if until.IsZero() {
		return nil
	}
	if c.timer == nil {
		c.timer = time.NewTimer(time.Until(until))
	} else {
		c.timer.Reset(time.Until(until))
	}
	return c.timer.C
}

// Wake implements [hca.CQ].
func (c *CQ) Wake() { c.signal(c.wake) }

// Close implements [hca.CQ].
func (c *CQ) Close() error {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return nil
	case c.users > 0:
		return verb("destroy_cq", c.dev.cfg.Name, hca.ErrBusy)
	}
	c.closed = true
	c.markDown()
	c.dev.slow.children--
	return nil
}
