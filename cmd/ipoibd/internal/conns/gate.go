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

// gate is a listener that can stop accepting while it stays open: connections wait in the kernel's
// queue, for this process or for another one that has the same socket. One goroutine calls Accept; any
// may call the other methods.
type gate struct {
	Listener
	accepted *bound

	mu       sync.Mutex
	reopened chan struct{} // closed by Resume; nil: not paused
	waits    chan struct{} // has a value when Accept waits for that
	closed   chan struct{}
	closing  sync.Once
}

// newGate returns an open gate for a listener, which it owns, and for the connections that its server tracks.
func newGate(l Listener, accepted *bound) *gate {
	return &gate{Listener: l, accepted: accepted, waits: make(chan struct{}, 1), closed: make(chan struct{})}
}

// Unwrap returns the listener itself.
func (g *gate) Unwrap() net.Listener { return g.Listener }

// Accept implements [net.Listener].
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
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
func (g *gate) Pause() {
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
	case <-g.accepted.none():
	case <-g.closed:
	case <-time.After(answerLimit):
	}
}

// Resume ends a pause.
func (g *gate) Resume() {
	_ = g.SetDeadline(time.Time{})
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.reopened != nil {
		close(g.reopened)
		g.reopened = nil
	}
}

// Close implements [net.Listener].
func (g *gate) Close() error {
	g.closing.Do(func() { close(g.closed) })
	return g.Listener.Close()
}
