package control

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/metrics"
)

// Limits of a client, which sends little and must not delay the daemon.
const (
	readTimeout  = 5 * time.Second // of a whole request
	writeTimeout = 5 * time.Second // of an answer, or of a batch for a follower
	maxHeader    = 16 << 10        // bytes
	maxBody      = 64 << 10        // bytes
	maxFollowers = 16
	maxOrders    = 64          // orders in progress
	maxIdle      = 128         // other connections
	closeTimeout = time.Second // for answers under way when the daemon exits
)

// ErrRunning reports that another daemon serves the socket.
var ErrRunning = errors.New("another daemon answers on this control socket: " +
	"stop it, or choose another path with --control")

// Server serves the control socket.
type Server struct {
	daemon    Daemon
	http      *http.Server
	listener  *conns.Gate
	followers chan struct{} // one value per follower
	orders    chan struct{} // one value per order in progress
	captures  chan struct{} // one value per capture
	idle      *conns.Bound  // neither follow events nor carry out an order
	views     http.Handler  // probes and metrics
	end       context.CancelFunc
}

// Listen creates the socket and its directory. It replaces a socket on which no process
// listens, and returns ErrRunning if one does.
func Listen(path string, d Daemon) (*Server, error) {
	l, err := listen(path)
	switch {
	case err == nil:
		return newServer(l, d)
	case errors.Is(err, ErrRunning):
		return nil, err
	case errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS):
		return nil, fmt.Errorf("create control socket: %w: run as root, or as the owner of its directory, "+
			"or choose another path with --control", err)
	}
	return nil, fmt.Errorf("create control socket: %w: choose another path with --control", err)
}

// listen creates the socket with mode 0600.
func listen(path string) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.Listen("unix", path)
}

// removeStale removes the socket of a daemon that was killed, on which no process listens.
func removeStale(path string) error {
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s exists and is not a socket", path)
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%s: %w", path, ErrRunning)
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	}
	return err
}

// Answers returns nil once a request over the socket was answered.
func (s *Server) Answers(ctx context.Context) error {
	return GetEvents(ctx, s.listener.Addr().String(), math.MaxUint64, false, nil)
}

// newServer returns a server that accepts one request per connection.
func newServer(l net.Listener, d Daemon) (*Server, error) {
	idle := &conns.Bound{Max: maxIdle}
	gate, err := conns.NewGate(l, idle)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, end := context.WithCancel(context.Background())
	s := &Server{
		daemon: d, listener: gate, end: end, views: metrics.NewHandler(d.Status), idle: idle,
		followers: make(chan struct{}, maxFollowers), orders: make(chan struct{}, maxOrders),
		captures: make(chan struct{}, capture.MaxCaptures),
	}
	s.http = &http.Server{
		Handler:        s,
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		MaxHeaderBytes: maxHeader,
		BaseContext:    func(net.Listener) context.Context { return ctx },
		ConnContext:    withClient,
		ConnState:      s.idle.Track,
	}
	s.http.SetKeepAlivesEnabled(false)
	return s, nil
}

// Serve serves requests until Close.
func (s *Server) Serve() error {
	err := s.http.Serve(listener{s.listener})
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
	if closeErr := s.listener.Close(); !errors.Is(closeErr, net.ErrClosed) { // Serve has closed it, if it was called
		err = errors.Join(err, closeErr)
	}
	return err
}
