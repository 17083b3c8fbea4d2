package control

import (
	"context"
	"net"
	"net/http"

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
	u, ok := c.(*conn)
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

// keep protects the connection of a request from being closed in favour of a newer one.
func (s *Server) keep(r *http.Request) {
	if c, ok := r.Context().Value(clientKey{}).(client); ok {
		s.idle.Keep(c.Conn)
	}
}
