package control

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// client is the other end of a connection, in the context of its request.
type client struct {
	net.Conn
	uid int // unknownUser if the kernel does not say
}

const unknownUser = -1

type clientKey struct{}

// withClient stores the client of a connection in the context of its request.
func withClient(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, clientKey{}, client{c, uidOf(c)})
}

func uidOf(c net.Conn) int {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return unknownUser
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return unknownUser
	}
	uid := unknownUser
	_ = raw.Control(func(fd uintptr) { // fails if the connection is closed
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			uid = int(cred.Uid)
		}
	})
	return uid
}

// allowed reports whether user peer may use the socket of a daemon that runs as user self.
func allowed(peer, self int) bool { return peer == 0 || peer == self }

// idle bounds the connections that neither follow events nor carry out an order. A new one is
// always accepted, and the oldest is closed instead, so that silent clients do not lock others
// out.
type idle struct {
	mu    sync.Mutex
	conns []net.Conn // oldest first
}

// track is the http.Server's ConnState.
func (i *idle) track(c net.Conn, state http.ConnState) {
	switch state {
	case http.StateClosed:
		i.remove(c)
	case http.StateNew:
		i.mu.Lock()
		defer i.mu.Unlock()
		if i.conns = append(i.conns, c); len(i.conns) > maxIdle {
			_ = i.conns[0].Close()
			i.conns = slices.Delete(i.conns, 0, 1)
		}
	default: // one request per connection
	}
}

func (i *idle) remove(c net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.conns = slices.DeleteFunc(i.conns, func(other net.Conn) bool { return other == c })
}

// keep protects the connection of a request from being closed in favour of a newer one.
func (i *idle) keep(r *http.Request) {
	if c, ok := r.Context().Value(clientKey{}).(client); ok {
		i.remove(c.Conn)
	}
}
