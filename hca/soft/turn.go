package soft

import (
	"errors"
	"sync/atomic"
	"time"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

// standInAfter is how long the transport stays unread, while no CQ's Wait reads it, before the
// stand-in starts to read. Meanwhile messages wait in the transport's buffer.
const standInAfter = 200 * time.Millisecond

// turn is the right to receive from the transport. One goroutine holds it at a time, normally a
// CQ's owner in Wait, so that messages go from the transport to the owner of their receives
// without a switch between goroutines. The waits of several CQs take turns: one reads the
// transport and delivers the messages for all. While no CQ's owner waits, the stand-in reads
// the transport, so that no message waits for long.
type turn struct {
	free    chan struct{}      // holds a token while no goroutine has the turn
	reader  atomic.Pointer[CQ] // its owner has the turn and waits in the transport; or nil
	waiting atomic.Int32       // goroutines that wait for the turn
	standIn atomic.Bool        // the stand-in has the turn
	wanted  chan struct{}      // while the stand-in had the turn, a goroutine began to wait, or the QPs changed
	start   *time.Timer        // starts the stand-in
	ended   atomic.Bool        // the transport is closed or has failed
	paused  atomic.Bool        // whoever has the turn yields it; see Device.Pause
}

// init makes the turn free, or paused.
func (t *turn) init(standIn func(), paused bool) {
	t.free = make(chan struct{}, 1)
	t.wanted = make(chan struct{}, 1)
	t.start = time.AfterFunc(standInAfter, standIn)
	if t.paused.Store(paused); !paused {
		t.free <- struct{}{}
		go standIn()
	}
}

// yield releases the turn. It sets the timer afterwards: otherwise a stand-in that the timer
// starts before might find no turn to take, and no other one would start.
func (t *turn) yield() {
	t.free <- struct{}{}
	if !t.ended.Load() {
		t.start.Reset(standInAfter)
	}
}

// receiveFor receives until c has a reason to end its Wait. The caller has the turn, which
// receiveFor releases.
func (l *lane) receiveFor(c *CQ, until time.Time) {
	if !until.IsZero() {
		c.limit.Reset(time.Until(until))
		defer c.limit.Stop()
	}
	for !l.turn.paused.Load() && !c.signaled() && l.receive(c) && (until.IsZero() || time.Now().Before(until)) {
	}
	l.turn.yield()
}

// receiveAlone is the stand-in. It receives until a CQ's owner waits for the turn.
func (l *lane) receiveAlone() {
	t := &l.turn
	select {
	case <-t.free:
	default:
		return
	}
	t.standIn.Store(true)
	select { // a token of the last turn
	case <-t.wanted:
	default:
	}
	for !t.paused.Load() && t.waiting.Load() == 0 && l.receive(nil) {
	}
	t.standIn.Store(false)
	t.yield()
}

// receive delivers the messages of one call of the transport, on behalf of the owner of c or,
// if c is nil, of the stand-in. It returns false if the owner must first post receives, or if
// the transport is closed or has failed. The caller has the turn.
func (l *lane) receive(c *CQ) bool {
	more, err := l.rx.batch(c)
	if err == nil {
		return more
	}
	if !l.turn.ended.Swap(true) && !errors.Is(err, hca.ErrClosed) {
		l.dev.lose()
	}
	return false
}

// recv receives datagrams, unless c has a reason to end its Wait. A signal of c interrupts it.
func (l *lane) recv(c *CQ, pkts []transport.Packet) (int, error) {
	if c == nil {
		return l.wire.Recv(pkts)
	}
	l.turn.reader.Store(c)
	defer l.turn.reader.Store(nil)
	if c.signaled() {
		return 0, nil
	}
	return l.wire.Recv(pkts)
}
