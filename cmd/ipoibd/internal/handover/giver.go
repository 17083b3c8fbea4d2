package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"
)

// Limits of the giver.
const (
	askLimit = 2 * time.Second // for the request
	// lastLimit bounds the sending of the last message, which is short. Meanwhile everything stands still.
	lastLimit = 200 * time.Millisecond
)

// Giver is the giver's side of a connection. One goroutine uses it.
type Giver struct {
	conn  conn
	state state
	PID   int // of the taker
}

// Give receives the request of a taker. The Giver closes the connection.
func Give(c *net.UnixConn) (*Giver, error) {
	g := &Giver{conn: conn{c}, state: asking}
	err := g.asked()
	if err != nil {
		_ = c.Close() // perhaps closed already
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
	CloseAll(fds)
	switch {
	case err != nil:
		return fmt.Errorf("receive the request: %w", err)
	case m.Type != "ask":
		return fmt.Errorf("the first message is a %q, not an \"ask\"", m.Type)
	case m.Version != Version:
		err := fmt.Errorf("process %d uses version %d of the hand-over protocol, this daemon uses version %d; instead, stop this daemon and start the new one", g.PID, m.Version, Version)
		g.Withdraw(err)
		return err
	}
	return nil
}

// Withdraw tells the taker why there is no offer, and closes the connection. Idempotent, also after Offer.
func (g *Giver) Withdraw(why error) {
	if !g.state.final() {
		g.end(failed, why)
	}
}

// Offer sends the state and the descriptors, which the caller keeps, and waits for the taker, but only
// until limit, because all traffic stands still. After nil the taker owns everything, after an error the
// giver does.
func (g *Giver) Offer(what any, fds []int, limit time.Time) error {
	body, err := json.Marshal(what)
	if err != nil {
		g.Withdraw(err)
		return err
	}
	if err := g.conn.SetDeadline(limit); err != nil {
		g.Withdraw(err)
		return err
	}
	if err := g.conn.send(message{Type: g.state.becomes(prepared), State: body}, fds); err != nil {
		g.end(broken, err)
		return fmt.Errorf("send the offer: %w", err)
	}
	m, more, err := g.conn.receive()
	CloseAll(more)
	e := eventOf(m, err)
	switch e {
	case late:
		err = fmt.Errorf("process %d has not taken over in time", g.PID)
	case gotTaken:
	default:
		err = errors.Join(fmt.Errorf("process %d has not taken over: it has ended, or refused", g.PID), err)
	}
	if g.end(e, err) == given {
		return nil
	}
	return err
}

// end enters a final state, sends the last message, and closes the connection. If yours cannot be
// sent, the taker has ended, and the giver keeps everything.
func (g *Giver) end(e event, why error) state {
	m := message{Type: g.state.becomes(e)}
	if why != nil {
		m.Reason = why.Error()
	}
	if m.Type != "" {
		_ = g.conn.within(lastLimit)
		if err := g.conn.send(m, nil); err != nil && g.state == given {
			g.state = kept
		}
	}
	_ = g.conn.Close()
	return g.state
}
