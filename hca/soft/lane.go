package soft

import (
	"time"

	"ipoibd/hca/soft/transport"
)

// lane is what exists once per transport: the turn to receive from it, and the send queues that
// found it full.
type lane struct {
	dev   *Device
	wire  transport.Transport
	tx    sender
	turn  turn
	rx    receiver // used in the turn
	drain drain
}

// newLane returns a lane that does not receive yet.
func newLane(d *Device, wire transport.Transport) *lane {
	l := &lane{dev: d, wire: wire}
	l.drain.init()
	l.rx = receiver{lane: l, to: delivery{dev: d, patience: time.NewTimer(backPressure)}}
	l.rx.to.patience.Stop()
	return l
}

// close closes the transport and waits until no goroutine receives.
func (l *lane) close() error {
	err := l.wire.Close()
	<-l.turn.free
	l.turn.start.Stop()
	return err
}
