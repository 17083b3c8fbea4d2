package conns

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// Limits of the waits of Pause.
const (
	acceptLimit = 200 * time.Millisecond // a server calls Accept again within microseconds
	answerLimit = time.Second            // a client sends its request, and reads the answer, within milliseconds
)

// Gate is a listener that can stop accepting while it stays open: connections wait in the kernel's
// queue, for this process or for another one that has the same socket. One goroutine calls Accept; any
// may call the other methods.
type Gate struct {
	listener
	accepted *Bound

	mu       sync.Mutex
	reopened chan struct{} // closed by Resume; nil: not paused
	waits    chan struct{} // has a value when Accept waits for that
	closed   chan struct{}
	closing  sync.Once
}

// listener is what TCP and UNIX listeners have in common.
type listener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// NewGate returns an open gate for a TCP or UNIX listener, which it owns, and for the connections that
// its server tracks.
func NewGate(l net.Listener, accepted *Bound) (*Gate, error) {
	can, ok := l.(listener)
	if !ok {
		return nil, errors.New("the listener has no deadline")
	}
	return &Gate{listener: can, accepted: accepted, waits: make(chan struct{}, 1), closed: make(chan struct{})}, nil
}

// Unwrap returns the listener itself.
func (g *Gate) Unwrap() net.Listener { return g.listener }

// Accept implements [net.Listener].
func (g *Gate) Accept() (net.Conn, error) {
	for {
		c, err := g.listener.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		g.mu.Lock()
		reopened := g.reopened
		g.mu.Unlock()
		if reopened == nil {
			continue
		}
		select {
		case g.waits <- struct{}{}:
		default:
		}
		select {
		case <-reopened:
		case <-g.closed:
			return nil, net.ErrClosed
		}
	}
}

// Pause stops accepting, and waits a limited time until the connections that were accepted before have
// been answered, except those that are kept.
func (g *Gate) Pause() {
	select {
	case <-g.waits: // since an earlier pause
	default:
	}
	g.mu.Lock()
	if g.reopened == nil {
		g.reopened = make(chan struct{})
	}
	g.mu.Unlock()
	_ = g.SetDeadline(time.Unix(1, 0)) // fails only if it is closed
	select {
	case <-g.waits:
	case <-g.closed:
	case <-time.After(acceptLimit): // no server runs
	}
	select {
	case <-g.accepted.None():
	case <-g.closed:
	case <-time.After(answerLimit):
	}
}

// Resume ends a pause.
func (g *Gate) Resume() {
	_ = g.SetDeadline(time.Time{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reopened != nil {
		close(g.reopened)
		g.reopened = nil
	}
}

// Close implements [net.Listener].
func (g *Gate) Close() error {
	g.closing.Do(func() { close(g.closed) })
	return g.listener.Close()
}
