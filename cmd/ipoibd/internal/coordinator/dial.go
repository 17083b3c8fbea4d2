package coordinator

import (
	"errors"
	"fmt"
	"math/bits"
	"net"

	"ipoibd/qprecovery/reset"
)

var errSilent = errors.New("the host of the device has not answered yet")

// dial finds the host, or becomes it. It does not block: a connect to a UNIX
// socket succeeds or fails at once, and the lock is only tried.
func (o *owner) dial() {
	if err := o.connect(); err != nil {
		o.unreachable(err)
		o.member.take(reset.Disconnected{})
		return
	}
	o.member.take(reset.Connected{})
}

func (o *owner) connect() error {
	if o.meeting == nil && o.host == nil {
		o.becomeHost(nil)
	}
	if o.host != nil {
		o.member.link = o.host.addSelf()
		return nil
	}
	nc, err := o.meeting.connect()
	if err == nil {
		return o.joinHost(nc)
	}
	if !errors.Is(err, errNobody) {
		return err
	}
	return o.takeOver()
}

func (o *owner) joinHost(nc *net.UnixConn) error {
	who, err := credentials(nc)
	if err != nil {
		nc.Close()
		return err
	}
	m := &o.member
	m.link, m.who = o.nextConn(), Host{PID: who.Pid}
	m.wire = o.newConn(m.link, nc, patient)
	o.waits(fmt.Errorf("process %d: %w", who.Pid, errSilent))
	return nil
}

// takeOver makes this process the host, unless another is faster.
func (o *owner) takeOver() error {
	l, err := o.meeting.host()
	if err != nil {
		return err
	}
	o.becomeHost(l)
	o.member.link = o.host.addSelf()
	return nil
}

// unreachable notes why there is no host. Each time that the tries have doubled it
// is told, so a host that fails in ever new ways does not fill the log.
func (o *owner) unreachable(err error) {
	m := &o.member
	m.err = err
	m.failed++
	if bits.OnesCount64(m.failed) == 1 {
		o.log.Warn("no connection to the host of the device; trying again", "err", err, "so_far", m.failed)
		o.waits(err)
	}
}

// waits tells who waits in Join what for.
func (o *owner) waits(why error) {
	if !o.member.open && o.conf.Waiting != nil {
		o.conf.Waiting(why)
	}
}
