package conns

import (
	"net"
	"net/http"
	"slices"
	"sync"
)

// bound bounds the connections of a server. Any goroutine may call its methods.
type bound struct {
	max int // connections, at least 1; constant

	mu    sync.Mutex
	conns []net.Conn    // oldest first
	empty chan struct{} // closed once no connection is left; nil: no goroutine waits
}

// track is the ConnState of the server.
func (b *bound) track(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateClosed:
		b.Keep(c)
	case http.StateNew:
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.conns = append(b.conns, c); len(b.conns) > b.max {
			_ = b.conns[0].Close()
			b.conns = slices.Delete(b.conns, 0, 1)
		}
	default: // one request per connection
	}
}

// Keep protects a connection from being closed in favour of a newer one. It no longer counts;
// the caller bounds the connections that it keeps.
func (b *bound) Keep(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(other net.Conn) bool { return other == c })
	if len(b.conns) == 0 && b.empty != nil {
		close(b.empty)
		b.empty = nil
	}
}

// none returns a channel that is closed when no connection counts. One goroutine may wait at a time.
func (b *bound) none() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	none := make(chan struct{})
	if len(b.conns) == 0 {
		close(none)
	} else {
		b.empty = none
	}
	return none
}
