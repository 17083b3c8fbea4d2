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

// listenPrivate creates the socket with mode 0600.
func listenPrivate(path string) (*net.UnixListener, error) {
	old := unix.Umask(0o177)
	defer unix.Umask(old)
	return net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
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

// bounded limits the number of connections. At the limit it accepts a new one and closes the
// oldest that may be closed, so that idle clients do not lock others out.
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

// boundedConn gives up its place when it is closed.
type boundedConn struct {
	*net.UnixConn
	of   *bounded
	kept atomic.Bool // not closed in favour of a newer one
}

// keep protects the connection of a request from being closed in favour of a newer one. Only
// followers and orders in progress call it; the number of both is limited.
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
