package control

import (
	"context"
	"net"
	"net/http"

	"ipoibd/link/kernel"
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
	u, ok := c.(*conn)
	if !ok {
		return unknownUser
	}
	peer, err := kernel.Peer(u)
	if err != nil { // the connection is closed
		return unknownUser
	}
	return int(peer.Uid)
}

// allowed reports whether user peer may use the socket of a daemon that runs as user self.
func allowed(peer, self int) bool { return peer == 0 || peer == self }

// keep protects the connection of a request from being closed in favour of a newer one.
func (s *Server) keep(r *http.Request) {
	if c, ok := r.Context().Value(clientKey{}).(client); ok {
		s.Keep(c.Conn)
	}
}
