package control

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
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

// bounded accepts no more connections than it has slots; one more waits in the
// backlog until another is closed.
type bounded struct {
	*net.UnixListener
	slots  chan struct{} // one value for each connection
	closed chan struct{}
	once   sync.Once
}

func newBounded(l *net.UnixListener, conns int) *bounded {
	return &bounded{UnixListener: l, slots: make(chan struct{}, conns), closed: make(chan struct{})}
}

// Accept blocks until there is a connection and a slot, or until Close.
func (b *bounded) Accept() (net.Conn, error) {
	select {
	case b.slots <- struct{}{}:
	case <-b.closed:
		return nil, net.ErrClosed
	}
	c, err := b.AcceptUnix()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &boundedConn{UnixConn: c, leave: sync.OnceFunc(func() { <-b.slots })}, nil
}

// Close ends Accept; connections stay.
func (b *bounded) Close() error {
	b.once.Do(func() { close(b.closed) })
	return b.UnixListener.Close()
}

// boundedConn gives its slot back when it is closed.
type boundedConn struct {
	*net.UnixConn
	leave func()
}

func (c *boundedConn) Close() error {
	defer c.leave()
	return c.UnixConn.Close()
}
