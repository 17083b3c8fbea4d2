// Package conns serves HTTP to clients that may be slow or silent. A connection carries one request. A new
// connection is always accepted: beyond a limit, the oldest is closed instead, so that silent clients cannot lock
// others out.
package conns

import (
	"context"
	"errors"
	"net"
	"net/http"
	"time"
)

// Timeout is how long a client may take to send a whole request, and to read an answer.
const Timeout = 5 * time.Second

// Server is an HTTP server. Any goroutine may call its methods, except Accept, which is for Serve.
type Server struct {
	*gate
	*bound
	HTTP *http.Server // may be changed before Serve
}

// Listener is what TCP and UNIX listeners have in common.
type Listener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// New returns a server for a listener, which it owns. A header has at most header bytes.
func New(l Listener, h http.Handler, header, connections int) *Server {
	b := &bound{max: connections}
	s := &Server{newGate(l, b), b, &http.Server{
		Handler: h, ReadTimeout: Timeout, WriteTimeout: Timeout, MaxHeaderBytes: header, ConnState: b.track,
	}}
	s.HTTP.SetKeepAlivesEnabled(false)
	return s
}

// Serve serves requests until Close.
func (s *Server) Serve() error {
	if err := s.HTTP.Serve(s.gate); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends Serve, waits until the requests under way are answered, but no longer than limit, and closes all
// connections. Idempotent.
func (s *Server) Close(limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := s.HTTP.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.HTTP.Close()
	}
	if closeErr := s.gate.Close(); !errors.Is(closeErr, net.ErrClosed) { // Serve has closed it, if it was called
		err = errors.Join(err, closeErr)
	}
	return err
}
