package control

import (
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// A request may carry one descriptor: SCM_RIGHTS (unix(7)) beside any of its bytes. If no command takes it,
// the connection closes it, so a client occupies one descriptor at most. A
// daemon of an earlier version does not receive it, and carries out the request without it.

// listener accepts connections that receive descriptors.
type listener struct{ *net.UnixListener }

// Accept implements [net.Listener].
func (l listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return &conn{UnixConn: c}, nil
}

// conn is the server's end of a connection. Any goroutine may call its methods.
type conn struct {
	*net.UnixConn

	mu       sync.Mutex
	received *os.File // not taken yet; nil: none
}

// Read implements [net.Conn]. A message has room for one descriptor, so the kernel does not pass on any
// others. Of several messages it keeps the descriptor of the last.
func (c *conn) Read(b []byte) (int, error) {
	var rights [unix.SizeofCmsghdr + 4]byte // without the padding of CMSG_SPACE, in which a second one would fit
	n, size, _, _, err := c.ReadMsgUnix(b, rights[:])
	switch {
	case errors.Is(err, io.EOF):
		return 0, io.EOF // callers compare it
	case err != nil:
		return 0, err // n may be negative
	}
	messages, _ := unix.ParseSocketControlMessage(rights[:size])
	for i := range messages {
		fds, _ := unix.ParseUnixRights(&messages[i])
		for _, fd := range fds {
			c.keep(os.NewFile(uintptr(fd), "descriptor of a request"))
		}
	}
	return n, nil
}

// keep replaces the received descriptor.
func (c *conn) keep(f *os.File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.received.Close() // nil: os.ErrInvalid
	c.received = f
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	c.keep(nil)
	return c.UnixConn.Close()
}

// descriptorOf returns the descriptor that a request carried, which the caller closes, or nil.
func descriptorOf(r *http.Request) *os.File {
	from, _ := r.Context().Value(clientKey{}).(client)
	c, ok := from.Conn.(*conn)
	if !ok {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.received
	c.received = nil
	return f
}

// sender is the client's end of a connection. It sends a descriptor with the first bytes.
type sender struct {
	*net.UnixConn
	pass *os.File // nil: none, or sent
}

// Write implements [net.Conn].
func (s *sender) Write(b []byte) (n int, err error) {
	if s.pass != nil {
		n, _, err = s.WriteMsgUnix(b, unix.UnixRights(int(s.pass.Fd())), nil)
		if s.pass = nil; err != nil || n == len(b) {
			return n, err
		}
	}
	more, err := s.UnixConn.Write(b[n:])
	return n + more, err
}
