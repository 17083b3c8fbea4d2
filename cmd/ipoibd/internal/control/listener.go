package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenPrivate(path)
}

// listenPrivate makes the socket with mode 0600 from its first moment on.
func listenPrivate(path string) (*net.UnixListener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
}

// removeStale removes the socket of a daemon that was killed: nobody listens on
// it any more.
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

// bounded has no more than a number of connections: one more is accepted, and the
// oldest that may go is closed. So nobody who connects is kept out by those who
// connected before and say nothing, or take no answer.
type bounded struct {
	*net.UnixListener
	most int

	mu    sync.Mutex
	conns []*boundedConn // open, oldest first
}

func newBounded(l *net.UnixListener, conns int) *bounded {
	return &bounded{UnixListener: l, most: conns}
}

// Accept blocks until there is a connection, or until Close.
func (b *bounded) Accept() (net.Conn, error) {
	c, err := b.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return b.add(&boundedConn{UnixConn: c, of: b}), nil
}

func (b *bounded) add(c *boundedConn) *boundedConn {
	b.mu.Lock()
	b.conns = append(b.conns, c)
	var oldest *boundedConn
	if i := slices.IndexFunc(b.conns, (*boundedConn).mayGo); len(b.conns) > b.most && i >= 0 {
		oldest = b.conns[i]
	}
	b.mu.Unlock()
	if oldest != nil {
		_ = oldest.Close()
	}
	return c
}

func (b *bounded) remove(c *boundedConn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = slices.DeleteFunc(b.conns, func(x *boundedConn) bool { return x == c })
}

// boundedConn leaves its place when it is closed.
type boundedConn struct {
	*net.UnixConn
	of   *bounded
	kept atomic.Bool // it is not closed for a newer one
}

// keep has the connection of a request stay: that of a follower, of which there
// are few, or of an order that is being carried out.
func keep(r *http.Request) {
	if c, ok := r.Context().Value(connKey{}).(*boundedConn); ok {
		c.kept.Store(true)
	}
}

func (c *boundedConn) mayGo() bool { return !c.kept.Load() }

func (c *boundedConn) Close() error {
	c.of.remove(c)
	return c.UnixConn.Close()
}
