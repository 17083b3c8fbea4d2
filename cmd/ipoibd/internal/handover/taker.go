package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel"
	"ipoibd/link/kernel/capsule"
)

// offerLimit bounds the wait for the offer: the giver first completes what is in flight.
const offerLimit = 10 * time.Second

// goneTries and gonePause bound the attempts to take over from a daemon that ends just then.
const (
	goneTries = 5
	gonePause = 50 * time.Millisecond
)

// ErrGone means that the giver ended before it made an offer.
var ErrGone = errors.New("the running daemon has ended")

// Gone returns ErrGone with the error of a connection that the other side has closed or left, and any other
// error as it is.
func Gone(err error) error {
	for _, end := range []error{io.EOF, io.ErrUnexpectedEOF, unix.ECONNRESET, unix.EPIPE} {
		if errors.Is(err, end) {
			return fmt.Errorf("%w: %w", ErrGone, err)
		}
	}
	return err
}

// TakeOver takes over from the daemon to which connect connects. build makes what that daemon runs from a capsule;
// nothing of it runs yet. discard closes what was made, also by a build that failed. After an error, which may be
// that of connect, nothing has changed.
func TakeOver(
	ctx context.Context, connect func(context.Context) (*net.UnixConn, error),
	build func(*capsule.Reader) error, discard func() error,
) error {
	for try := 1; ; try++ {
		err := takeOver(ctx, connect, build, discard)
		if err == nil || ctx.Err() != nil {
			return err
		}
		if !errors.Is(err, ErrGone) || try == goneTries {
			return fmt.Errorf("%w; if that persists, stop the running daemon and start this one without "+
				"--take-over, which interrupts traffic for a moment", err)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("take over: %w", ctx.Err())
		case <-time.After(gonePause): // another one may be starting in its place
		}
	}
}

// takeOver is one attempt of TakeOver. ErrGone: the other daemon ended before it made an offer.
func takeOver(
	ctx context.Context, connect func(context.Context) (*net.UnixConn, error),
	build func(*capsule.Reader) error, discard func() error,
) error {
	conn, err := connect(ctx)
	if err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	t, err := Take(ctx, conn)
	if err != nil {
		return fmt.Errorf("take over: %w", err)
	}
	err = build(t.Capsule)
	t.Capsule.Close()
	if err != nil {
		t.Fail()
	} else {
		err = t.Own(ctx)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("take over: %w", err), discard())
	}
	return nil
}

// Taker is the taker's side of a connection. One goroutine uses it.
type Taker struct {
	conn    conn
	state   state
	Capsule *capsule.Reader // of the giver; the caller closes it
}

// Take asks for everything and receives the offer. The taker owns the connection. Errors: ErrGone, why
// the giver keeps everything, and those of the socket.
func Take(ctx context.Context, c *net.UnixConn) (*Taker, error) {
	t := &Taker{conn: conn{c}, state: waiting}
	if err := t.conn.within(offerLimit); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	interrupted := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)); close(interrupted) })
	err := t.offered()
	if !stop() {
		<-interrupted // else it could interrupt Own
		err = errors.Join(ctx.Err(), err)
	}
	if err != nil {
		if t.Capsule != nil {
			t.Capsule.Close()
		}
		return nil, errors.Join(err, c.Close())
	}
	return t, nil
}

func (t *Taker) offered() error {
	if _, err := Peer(t.conn.UnixConn); err != nil {
		return err
	}
	if err := t.conn.send(message{Type: "ask", Version: Version}, nil); err != nil {
		return Gone(err)
	}
	m, fds, err := t.conn.receive()
	if t.state.becomes(eventOf(m, err)); t.state == building {
		if t.Capsule, err = capsule.NewReader(m.Parts, fds); err != nil {
			t.state.becomes(failed)
		}
		return err
	}
	kernel.CloseAll(fds)
	return t.why(m, err)
}

// Fail ends the hand-over, because what was offered cannot be used.
func (t *Taker) Fail() {
	t.state.becomes(failed)
	_ = t.conn.Close()
}

// Own says that everything is ready, and waits until the giver decides, or dies, or ctx ends. After nil the
// taker owns everything, even if ctx has ended; after an error it does not.
func (t *Taker) Own(ctx context.Context) error {
	defer t.conn.Close()
	if err := t.conn.within(0); err != nil {
		return err
	}
	// If this cannot be sent, the giver has withdrawn or died; its last message, if any, says which.
	_ = t.conn.send(message{Type: t.state.becomes(prepared)}, nil)
	// What the giver has sent before CloseRead can still be read, and nothing can be sent afterwards.
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { _ = t.conn.CloseRead(); close(closed) })
	m, fds, err := t.conn.receive()
	kernel.CloseAll(fds)
	if !stop() {
		<-closed
		t.state.becomes(ended)
	}
	if t.state.becomes(eventOf(m, err)); t.state == owner {
		return nil
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.why(m, err)
}

// why describes why the giver keeps everything.
func (t *Taker) why(m message, err error) error {
	switch {
	case m.Type == "withdrawn":
		return fmt.Errorf("the running daemon continues: %s", m.Reason)
	case err != nil:
		return Gone(fmt.Errorf("the running daemon has sent no offer: %w", err))
	}
	return fmt.Errorf("the running daemon has sent an unexpected %q", m.Type)
}
