// Package conns bounds the connections of an HTTP server, so that silent clients cannot lock
// others out: a new connection is always accepted, and the oldest is closed instead.
package conns

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// Bound bounds the connections of a server that carries one request per connection (see
// [http.Server.SetKeepAlivesEnabled]). Any goroutine may call its methods.
type Bound struct {
	Max int // connections, at least 1; constant

	mu    sync.Mutex
	conns []net.Conn    // oldest first
	none  chan struct{} // closed once no connection is left; nil if nobody waits for that
}

// Track is the ConnState of the server.
func (b *Bound) Track(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateClosed:
		b.Keep(c)
	case http.StateNew:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.conns = append(b.conns, c); len(b.conns) > b.Max {
			_ = b.conns[0].Close()
			b.conns = slices.Delete(b.conns, 0, 1)
		}
	default: // one request per connection
	}
}

// Keep protects a connection from being closed in favour of a newer one. It no longer counts;
// the caller bounds the connections that it keeps.
func (b *Bound) Keep(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(other net.Conn) bool { return other == c })
	if len(b.conns) == 0 && b.none != nil {
		close(b.none)
		b.none = nil
	}
}

// None returns a channel that is closed when no connection counts. One goroutine may wait at a time.
func (b *Bound) None() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	none := make(chan struct{})
	if len(b.conns) == 0 {
		close(none)
	} else {
		b.none = none
	}
	return none
}
