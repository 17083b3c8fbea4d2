package coordinator

import (
	"errors"
	"fmt"
	"math/bits"
	"net"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// What may be wrong with the host. What to do about it is in the configuration.
var (
	errSilent   = errors.New("has not answered yet; it is stopped, or is no daemon that shares the device")
	errMute     = errors.New("closes the connection without a word; it serves others only, or is no daemon that shares the device")
	errStranger = errors.New("is no daemon that shares the device; set `coordinator` to a path of its own, the same for all that do")
)

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
		return o.explain(err)
	}
	return o.takeOver()
}

// explain says of an error on the way to the host what it means where that has
// not said who it is.
func (o *owner) explain(err error) error {
	if o.member.up {
		return err
	}
	for _, strange := range []error{unix.EPROTOTYPE, reset.ErrTooLong, reset.ErrVersion, reset.ErrFormat} {
		if errors.Is(err, strange) {
			return o.suspect(fmt.Errorf("%w: %w", errStranger, err))
		}
	}
	if !misbehaved(err) {
		return o.suspect(fmt.Errorf("%w: %w", errMute, err))
	}
	return err
}

// suspect names who listens at the path.
func (o *owner) suspect(why error) error {
	if pid := o.member.who.PID; pid != 0 {
		return fmt.Errorf("process %d at %s %w", pid, o.conf.Path, why)
	}
	return fmt.Errorf("what listens at %s %w", o.conf.Path, why)
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
	if !errors.Is(m.err, errStranger) && !errors.Is(m.err, errMute) { // they say more
		o.waits(o.suspect(errSilent))
	}
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
