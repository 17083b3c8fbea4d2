package handover

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// askLimit bounds the wait for the request.
const askLimit = 2 * time.Second

// Giver is the giver's side of a connection. One goroutine uses it.
type Giver struct {
	conn  conn
	state state
	PID   int           // of the taker
	done  chan struct{} // closed when the taker knows the outcome, or has ended
}

// Give receives the request of a taker. The Giver closes the connection.
func Give(c *net.UnixConn) (*Giver, error) {
	g := &Giver{conn: conn{c}, state: asking, done: make(chan struct{})}
	if err := g.asked(); err != nil {
		if g.state == asking { // else a refusal is on its way
			g.end()
		}
		return nil, err
	}
	return g, nil
}

func (g *Giver) asked() (err error) {
	if g.PID, err = Peer(g.conn.UnixConn); err != nil {
		return err
	}
	if err := g.conn.within(askLimit); err != nil {
		return err
	}
	m, fds, err := g.conn.receive()
	kernel.CloseAll(fds)
	switch {
	case err != nil:
		return fmt.Errorf("receive the request: %w", err)
	case m.Type != "ask":
		return fmt.Errorf("the first message is a %q, not an \"ask\"", m.Type)
	case m.Version != Version:
		err := fmt.Errorf("process %d uses version %d of the hand-over protocol, this daemon uses version %d",
			g.PID, m.Version, Version)
		g.Withdraw(err)
		return err
	}
	return nil
}

// Done is closed once the taker knows that it owns nothing, or has ended. Until then it has what it
// received, so there must be no other hand-over.
func (g *Giver) Done() <-chan struct{} { return g.done }

// Withdraw tells the taker why there is no offer, and closes the connection once the taker could read that.
// It does not wait for that. Idempotent, also after Offer.
func (g *Giver) Withdraw(why error) {
	if g.state == asking {
		g.keep(failed, why)
	}
}

// Offer sends a capsule, which the caller closes, and waits for the taker, but only until limit, because all traffic
// stands still. After nil the taker owns everything, after an error the giver does.
func (g *Giver) Offer(what *capsule.Writer, limit time.Time) error {
	parts, fds, err := what.Contents()
	if err == nil {
		err = g.conn.SetDeadline(limit)
	}
	if err != nil {
		g.Withdraw(err)
		return err
	}
	if err := g.conn.send(message{Type: g.state.becomes(prepared), Parts: parts}, fds); err != nil {
		g.keep(broken, err)
		return fmt.Errorf("send the offer: %w", err)
	}
	g.state.becomes(sent)
	m, more, err := g.conn.receive()
	kernel.CloseAll(more)
	e := eventOf(m, err)
	switch {
	case e == late:
		err = fmt.Errorf("process %d did not take over in time", g.PID)
	case e != gotTaken && errors.Is(Gone(err), ErrGone):
		err = fmt.Errorf("process %d did not take over: it exited, or refused; see its own messages", g.PID)
	case e != gotTaken:
		err = cmp.Or(err, fmt.Errorf("it sent an unexpected %q", m.Type))
		err = fmt.Errorf("process %d did not take over: %w", g.PID, err)
	default:
		e, err = g.yield()
	}
	if e == sent {
		g.state.becomes(sent)
		g.end()
		return nil
	}
	g.keep(e, err)
	return err
}

// yield sends yours if there is room for it, without a deadline that could pass before. The kernel splits no
// message as short as that.
func (g *Giver) yield() (event, error) {
	err := g.conn.sendNow(message{Type: g.state.becomes(gotTaken)})
	switch {
	case err == nil:
		return sent, nil
	case errors.Is(err, unix.EAGAIN):
		return late, fmt.Errorf("process %d accepted an offer that it has not read", g.PID)
	}
	return broken, fmt.Errorf("process %d exited before it owned anything: %w", g.PID, err)
}

// keep ends the hand-over with what the giver owns. If the taker must be told, that may take until it runs
// again, so it happens in the background.
func (g *Giver) keep(e event, why error) {
	m := message{Type: g.state.becomes(e), Reason: why.Error()}
	if g.state == kept {
		g.end()
		return
	}
	go func() {
		defer g.end() // which is all that the state kept means
		_ = g.conn.within(0)
		_ = g.conn.send(m, nil) // an error means that the taker has ended
	}()
}

// end closes the connection.
func (g *Giver) end() {
	_ = g.conn.Close()
	close(g.done)
}
