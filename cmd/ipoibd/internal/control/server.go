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
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"ipoibd/cmd/ipoibd/internal/capture"
	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/metrics"
	"ipoibd/link/kernel"
)

// Limits of a client, which sends little and must not delay the daemon.
const (
	maxHeader    = 16 << 10 // bytes
	maxBody      = 64 << 10 // bytes
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
	*conns.Server // keeps the connections that follow events or carry out an order
	daemon        Daemon
	followers     chan struct{} // one value per follower
	orders        chan struct{} // one value per order in progress
	captures      chan struct{} // one value per capture
	views         http.Handler  // probes and metrics
	end           context.CancelFunc
}

// Listen creates the socket and its directory. It replaces a socket on which no process
// listens, and returns ErrRunning if one does.
func Listen(path string, d Daemon) (*Server, error) {
	l, err := listen(path)
	switch {
	case err == nil:
		return newServer(listener{l}, d), nil
	case errors.Is(err, ErrRunning):
		return nil, err
	case errors.Is(err, fs.ErrPermission) && !errors.Is(err, unix.EROFS):
		return nil, fmt.Errorf("create control socket: %w: run as root, or as the owner of its directory, "+
			"or choose another path with --control", err)
	}
	return nil, fmt.Errorf("create control socket: %w: choose another path with --control", err)
}

// listen creates the socket with mode 0600.
func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	lock, err := lockStart(path)
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// lockStart locks a file beside the socket, so that of several daemons that start at the same time only one replaces
// a stale socket. The caller closes it. A file that belongs to a former daemon with another user is replaced.
func lockStart(path string) (*os.File, error) {
	name := strings.TrimSuffix(path, ".sock") + ".lock"
	open := func() (*os.File, error) {
		return kernel.OpenPrivate(unix.AT_FDCWD, name, unix.O_RDWR|unix.O_CREAT)
	}
	lock, err := open()
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, kernel.ErrNotPrivate) {
		if err = os.Remove(name); err == nil {
			lock, err = open()
		}
	}
	if err != nil {
		return nil, err
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case err == nil:
		return lock, nil
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("%s: %w", path, ErrRunning)
	default:
		err = fmt.Errorf("lock %s: %w", name, err)
	}
	return nil, errors.Join(err, lock.Close())
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
	return GetEvents(ctx, s.Addr().String(), math.MaxUint64, false, nil)
}

func newServer(l conns.Listener, d Daemon) *Server {
	ctx, end := context.WithCancel(context.Background())
	s := &Server{
		daemon: d, end: end, views: metrics.NewHandler(d.Status), followers: make(chan struct{}, maxFollowers),
		orders: make(chan struct{}, maxOrders), captures: make(chan struct{}, capture.MaxCaptures),
	}
	s.Server = conns.New(l, s, maxHeader, maxIdle)
	s.HTTP.BaseContext = func(net.Listener) context.Context { return ctx }
	s.HTTP.ConnContext = withClient
	return s
}

// Close ends Serve and removes the socket. It ends the streams of followers and cancels other
// requests, whose connections it closes after a second.
func (s *Server) Close() error {
	s.end()
	return s.Server.Close(closeTimeout)
}
