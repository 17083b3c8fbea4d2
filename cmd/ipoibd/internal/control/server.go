package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Limits of a client: what it sends is small, and it does not hold us up.
const (
	readTimeout  = 5 * time.Second
	writeTimeout = 30 * time.Second
	maxHeader    = 16 << 10
)

// ErrRunning says that another daemon answers on the socket.
var ErrRunning = errors.New("another daemon answers on this control socket")

// Server answers on the control socket.
type Server struct {
	http     *http.Server
	listener *net.UnixListener
}

// Listen makes the socket and its folder. A socket that nobody answers on is
// replaced; ErrRunning where somebody does.
func Listen(path string, d Daemon) (*Server, error) {
	l, err := listen(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("make control socket: %w: run as root, or choose another path with --control", err)
	}
	if err != nil {
		return nil, fmt.Errorf("make control socket: %w", err)
	}
	return &Server{listener: l, http: newHTTP(d)}, nil
}

func listen(path string) (*net.UnixListener, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := removeStale(path); err != nil {
		return nil, err
	}
	return listenPrivate(path)
}

func newHTTP(d Daemon) *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/status", func(w http.ResponseWriter, _ *http.Request) { reply(w, http.StatusOK, d.Status()) })
	return &http.Server{
		Handler:        guard(mux),
		ReadTimeout:    readTimeout,
		WriteTimeout:   writeTimeout,
		MaxHeaderBytes: maxHeader,
		ConnContext:    withPeer,
	}
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

// Serve answers until Close.
func (s *Server) Serve() error {
	err := s.http.Serve(s.listener)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close ends Serve, cuts its connections and removes the socket.
func (s *Server) Close() error {
	return errors.Join(s.http.Close(), ignoreClosed(s.listener.Close()))
}

func reply(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	_ = enc.Encode(v) // the client went away: nobody is left to tell
}

type refusal struct {
	Error string `json:"error"`
}

type peerKey struct{}

// withPeer notes who is at the other end.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	cred, err := peerOf(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, cred)
}

func peerOf(c net.Conn) (*unix.Ucred, error) {
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.New("not a UNIX socket")
	}
	raw, err := uc.SyscallConn()
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

// guard lets root and the daemon's own user in.
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

// ignoreClosed drops the error of closing what Serve has closed already.
func ignoreClosed(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
