package control

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/handover"
	"ipoibd/link/kernel/capsule"
)

// handOverProtocol is the protocol to which the connection of a hand-over changes (RFC 9110, section
// 7.8).
const handOverProtocol = "ipoibd-hand-over"

// handOver serves a taker. It is stricter than other requests: root may not take over the daemon of
// another user, because files and queues belong to that user.
func (s *Server) handOver(w http.ResponseWriter, r *http.Request) {
	c, ok := r.Context().Value(clientKey{}).(client)
	if conn, isUnix := c.Conn.(*conn); !ok || !isUnix {
		refuse(w, fmt.Errorf("%w: not a UNIX socket", ErrInvalid))
		return
	} else if _, err := handover.Peer(conn.UnixConn); err != nil {
		refuse(w, fmt.Errorf("%w: %w", ErrNotAllowed, err))
		return
	}
	if r.Header.Get("Upgrade") != handOverProtocol {
		refuse(w, fmt.Errorf("%w: upgrade the connection to %s", ErrInvalid, handOverProtocol))
		return
	}
	answered := false
	err := s.daemon.HandOver(func() (*net.UnixConn, error) {
		s.keep(r)
		hijacked, buffered, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return nil, err
		}
		answered = true
		conn, ok := hijacked.(*conn)
		_ = hijacked.SetDeadline(time.Now().Add(conns.Timeout))
		_, err = fmt.Fprintf(hijacked, "HTTP/1.1 %d Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n",
			http.StatusSwitchingProtocols, handOverProtocol)
		if err != nil || !ok || buffered.Reader.Buffered() > 0 { // a taker waits for the answer before it sends
			return nil, errors.Join(errors.New("the taker has sent too much"), err, hijacked.Close())
		}
		conn.keep(nil)
		return conn.UnixConn, nil
	})
	if err != nil && !answered {
		refuse(w, err)
	}
}

// AskHandOver connects to the daemon that serves the socket, which then offers to hand over. Errors:
// ErrNotRunning, handover.ErrGone, why the daemon refuses, and those of the socket.
func AskHandOver(ctx context.Context, path string) (*net.UnixConn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%s: %w", path, ErrNotRunning)
	case err != nil:
		return nil, err
	}
	conn := c.(*net.UnixConn)
	if err := upgrade(ctx, conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// upgrade changes the protocol of a connection.
func upgrade(ctx context.Context, conn *net.UnixConn) error {
	if err := conn.SetDeadline(time.Now().Add(viewTimeout)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	req, err := http.NewRequest(http.MethodPost, "http://ipoibd/v1/hand-over", http.NoBody)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", handOverProtocol)
	if err := req.Write(conn); err != nil {
		return handover.Gone(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req) // the daemon sends nothing else before it is asked
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fmt.Errorf("the daemon has not answered within %s: %w", viewTimeout, ErrHangs)
	case err != nil:
		return handover.Gone(fmt.Errorf("ask for a hand-over: %w", err))
	case resp.StatusCode != http.StatusSwitchingProtocols:
		return refusalOf(resp)
	}
	return nil
}

// Export puts the socket into a capsule, as the part "control".
func (s *Server) Export(w *capsule.Writer) { w.PutListener("control", s.Unwrap()) }

// Leave makes Close leave the socket to the process that continues it.
func (s *Server) Leave() { s.unlink(false) }

// backlog bounds the connections that wait; net.core.somaxconn may bound them further.
const backlog = 4096

// Own makes Close remove the socket. Clients then see this process at the other end (SO_PEERCRED), which
// listen(2) determines.
func (s *Server) Own() {
	s.unlink(true)
	if l, ok := s.Unwrap().(listener); ok {
		if raw, err := l.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = syscall.Listen(int(fd), backlog) })
		}
	}
}

func (s *Server) unlink(on bool) {
	if l, ok := s.Unwrap().(listener); ok {
		l.SetUnlinkOnClose(on)
	}
}

// Import returns a server that continues the socket of another process, the part "control" of a capsule. Connections
// wait until Serve. Until Own, Close leaves the socket.
func Import(path string, r *capsule.Reader, d Daemon) (*Server, error) {
	l, err := r.Listener("control")
	if err != nil {
		return nil, fmt.Errorf("take over the control socket: %w", err)
	}
	u, ok := l.(*net.UnixListener)
	if !ok || u.Addr().String() != path {
		return nil, errors.Join(fmt.Errorf("take over the control socket: it is %s, not %s", l.Addr(), path), l.Close())
	}
	return newServer(listener{u}, d), nil
}
