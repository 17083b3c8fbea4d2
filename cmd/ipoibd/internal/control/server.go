package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a client, which sends little and must not delay the daemon.
const (
	readTimeout  = 5 * time.Second // of a whole request
	writeTimeout = 5 * time.Second // of an answer, or of a batch for a follower
	maxHeader    = 16 << 10        // bytes
	maxBody      = 64 << 10        // bytes
	maxConns     = 128             // a further one closes the oldest
	maxFollowers = 16              // of them
	maxOrders    = 64              // of them, orders in progress; the rest is left for other requests
	closeTimeout = time.Second     // for answers under way when the daemon ends
)

// ErrRunning reports that another daemon serves the socket.
var ErrRunning = errors.New("another daemon answers on this control socket")

// Server serves the control socket.
type Server struct {
	daemon    Daemon
	http      *http.Server
	listener  net.Listener
	followers chan struct{} // one value per follower
	orders    chan struct{} // one value per order in progress
	end       context.CancelFunc
}

// Listen creates the socket and its directory. It replaces a socket on which no process
// listens, and returns ErrRunning if one does.
func Listen(path string, d Daemon) (*Server, error) {
	l, err := listen(path)
	if errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS) {
		return nil, fmt.Errorf("make control socket: %w: run as root, or choose another path with --control", err)
	}
	if err != nil && !errors.Is(err, ErrRunning) {
		return nil, fmt.Errorf("make control socket: %w: choose another path with --control", err)
	}
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancel(context.Background())
	return newServer(ctx, newBounded(l, maxConns), d, end), nil
}

// newServer returns a server whose requests end with ctx; end cancels ctx.
func newServer(ctx context.Context, l net.Listener, d Daemon, end context.CancelFunc) *Server {
	s := &Server{
		daemon: d, listener: l, end: end,
		followers: make(chan struct{}, maxFollowers), orders: make(chan struct{}, maxOrders),
	}
	s.http = s.newHTTP(ctx)
	return s
}

// newHTTP accepts one request per connection. Requests end with ctx.
func (s *Server) newHTTP(ctx context.Context) *http.Server {
	h := &http.Server{
		Handler:        guard(s.routes()),
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnContext:    withConn,
	}
	h.SetKeepAlivesEnabled(false)
	return h
}

// Serve serves requests until Close.
func (s *Server) Serve() error {
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends Serve and removes the socket. It ends the streams of followers and cancels other
// requests, whose connections it closes after a second.
func (s *Server) Close() error {
	s.end()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	return errors.Join(ignoreClosed(err), ignoreClosed(s.listener.Close()))
}

// ignoreClosed drops the error of closing what Serve has closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
