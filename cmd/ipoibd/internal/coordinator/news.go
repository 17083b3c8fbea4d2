package coordinator

import (
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"ipoibd/qprecovery/reset"
)

// news is what another goroutine tells the owner, which makes a turn after each.
type news interface{ tell(*owner) }

// heard is a message from a connection.
type heard struct {
	conn reset.Conn
	msg  reset.Message
}

// broken says that a connection is gone, and why; io.EOF: the peer closed it.
type broken struct {
	conn reset.Conn
	err  error
}

// died says that the process behind a connection has ended.
type died struct{ conn reset.Conn }

// resetDone says that Config.Reset returned.
type resetDone struct {
	id  reset.ID
	err error
}

// accepted is a new connection.
type accepted struct{ nc *net.UnixConn }

func (n heard) tell(o *owner) {
	switch {
	case n.conn == o.member.link:
		o.member.hear(n.msg)
	case o.host != nil:
		o.host.hear(n.conn, n.msg)
	}
}

func (n broken) tell(o *owner) {
	switch {
	case n.conn == o.member.link:
		o.lostHost(o.explain(fmt.Errorf("the connection to the host ended: %w", n.err)))
	case o.host != nil:
		o.host.broken(n.conn, n.err)
	}
}

func (n died) tell(o *owner) { o.host.died(n.conn) }

func (n resetDone) tell(o *owner) {
	o.host.running, o.host.cancel = 0, nil
	o.host.report(n)
}

func (n accepted) tell(o *owner) {
	if err := o.host.accept(n.nc); err != nil {
		n.nc.Close()
		o.refuse("newcomer", err)
	}
}

// misbehaved reports whether a connection ended by a fault of the peer: what it
// sent is no message, or it was silent in the middle of one.
func misbehaved(err error) bool {
	for _, usual := range []error{io.EOF, net.ErrClosed, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, usual) {
			return false
		}
	}
	return true
}
