package soft

import (
	"errors"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// standInAfter is how long the transport goes unread, if no CQ's Wait reads it, until the
// stand-in does.
const standInAfter = 10 * time.Millisecond

// turn is the right to receive from the transport, which one goroutine has at a time. It is
// that of a CQ's owner in Wait, so that messages go from the transport to the owner of their
// receives without a change of goroutines. The waits of several CQs take turns: one reads the
// transport, and delivers the messages for all. While no CQ's owner waits, the stand-in reads
// the transport, so that messages are delivered or dropped on arrival in any case.
type turn struct {
	free    chan struct{}      // holds a token while no goroutine has the turn
	reader  atomic.Pointer[CQ] // whose owner has the turn and waits in the transport
	waiting atomic.Int32       // goroutines that wait for the turn
	standIn atomic.Bool        // the stand-in has the turn
	start   *time.Timer        // starts the stand-in
	ended   atomic.Bool        // the transport is closed or has failed
}

func (t *turn) init(standIn func()) {
	t.free = make(chan struct{}, 1)
	t.free <- struct{}{}
	t.start = time.AfterFunc(standInAfter, standIn)
	go standIn()
}

// yield gives up the turn.
func (t *turn) yield() {
	if !t.ended.Load() {
		t.start.Reset(standInAfter)
	}
	t.free <- struct{}{}
}

// receiveFor receives in the turn of c's owner until c has a reason to end its Wait.
func (d *Device) receiveFor(c *CQ, until time.Time) {
	if !until.IsZero() {
		c.limit.Reset(time.Until(until))
		defer c.limit.Stop()
	}
	for !c.signaled() && d.receive(c) && (until.IsZero() || time.Now().Before(until)) {
	}
	d.turn.yield()
}

// receiveAlone is the stand-in. It receives until a CQ's owner waits for the turn.
func (d *Device) receiveAlone() {
	t := &d.turn
	select {
	case <-t.free:
	default:
		return
	}
	t.standIn.Store(true)
	for t.waiting.Load() == 0 && d.receive(nil) {
	}
	t.standIn.Store(false)
	t.yield()
}

// receive delivers the messages of one call of the transport, for the owner of c or, if c is
// nil, for the stand-in. It returns false if the owner must act first, because it has no
// receives left, or if the transport has ended. The caller has the turn.
func (d *Device) receive(c *CQ) bool {
	more, err := d.rx.batch(c)
	if err == nil {
		return more
	}
	if !d.turn.ended.Swap(true) && !errors.Is(err, hca.ErrClosed) {
		d.lose()
	}
	return false
}

// recv receives datagrams unless c has a reason to end its Wait. While it waits, a signal of c
// interrupts it.
func (d *Device) recv(c *CQ, pkts []transport.Packet) (int, error) {
	if c == nil {
		return d.wire.Recv(pkts)
	}
	d.turn.reader.Store(c)
	defer d.turn.reader.Store(nil)
	if c.signaled() {
		return 0, nil
	}
	return d.wire.Recv(pkts)
}
