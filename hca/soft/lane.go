package soft

import (
	"sync/atomic"
	"time"

	"ipoibd/hca/soft/transport"
	"ipoibd/hca/softqp"
)

// lane holds what exists once per transport: the turn to receive from it, and the send queues that
// found it full. Queue i of each QP sends through lane i, and gets the messages that arrive
// there; see CreateQueues for other numbers of queues. The data path writes nothing that lanes
// share.
type lane struct {
	dev    *Device
	index  int
	wire   transport.Transport
	env    atomic.Pointer[softqp.Env] // the same for all lanes, except for the source port
	tx     sender
	turn   turn
	rx     receiver // used in the turn
	drain  drain
	counts counters
}

// newLane returns a lane that does not receive yet.
func newLane(d *Device, index int, wire transport.Transport) *lane {
	l := &lane{dev: d, index: index, wire: wire}
	l.drain.init()
	l.rx = receiver{lane: l, to: delivery{lane: l, patience: time.NewTimer(backPressure)}}
	l.rx.to.patience.Stop()
	return l
}

// close closes the transport and waits until no goroutine receives.
func (l *lane) close() error {
	l.turn.ended.Store(true)
	l.resume()
	notify(l.turn.wanted)
	err := l.wire.Close()
	<-l.turn.free
	l.turn.start.Stop()
	return err
}
