package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

type (
	peerKey struct{}
	connKey struct{}
)

// withConn stores the connection and the credentials of the process at its other end.
func withConn(ctx context.Context, c net.Conn) context.Context {
	ctx = context.WithValue(ctx, connKey{}, c)
	cred, err := peerOf(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

func peerOf(c net.Conn) (*unix.Ucred, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, errors.New("not a socket")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) {
		cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return nil, err
	}
	return cred, credErr
}

// guard refuses every user except root and the daemon's own.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		cred, ok := r.Context().Value(peerKey{}).(*unix.Ucred)
		if !ok || !allowed(cred.Uid, uint32(os.Geteuid())) {
			reply(w, http.StatusForbidden, refusal{"only root and the user the daemon runs as may use this socket"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func allowed(peer, self uint32) bool { return peer == 0 || peer == self }
