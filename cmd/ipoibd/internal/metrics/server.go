package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link/kernel/capsule"
)

// Limits of the clients on the network.
const (
	readTimeout  = 5 * time.Second // of a whole request
	writeTimeout = 5 * time.Second // of an answer
	maxHeader    = 8 << 10         // bytes
	maxConns     = 64
	// maxRate is connections per second. Each takes about 0.1 ms of a processor, and a scrape
	// 60 KB of the network, so a flood takes a hundredth of one, and 50 Mbit/s. Prometheus and
	// probes need about one a second.
	maxRate = 100
	backlog = 64 // connections that wait to be accepted
)

// Server serves the probes and the metrics, and nothing else, over TCP.
type Server struct {
	http     *http.Server
	listener *paced
	gate     *conns.Gate // of listener
	cancel   context.CancelFunc
}

// Listen listens on a TCP address, host:port. Connections wait until Serve.
func Listen(addr string, status func() report.Status) (*Server, error) {
	l, err := listen(addr)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w: choose another address with --metrics-listen", err)
	}
	return newServer(l, status)
}

// Import returns a server that continues the listener of another process, the part "metrics" of a capsule. Connections
// wait until Serve.
func Import(r *capsule.Reader, status func() report.Status) (*Server, error) {
	l, err := r.Listener("metrics")
	if err != nil {
		return nil, fmt.Errorf("take over the metrics listener: %w", err)
	}
	if l.Addr().Network() != "tcp" {
		err := fmt.Errorf("take over the metrics listener: it is a %s socket", l.Addr().Network())
		return nil, errors.Join(err, l.Close())
	}
	return newServer(l, status)
}

// Pause stops accepting connections, which wait for Resume or for another process, and answers those
// that were accepted before: see [conns.Gate.Pause].
func (s *Server) Pause() { s.gate.Pause() }

// Resume ends a pause.
func (s *Server) Resume() { s.gate.Resume() }

// Export puts the listener into a capsule, as the part "metrics".
func (s *Server) Export(w *capsule.Writer) { w.PutListener("metrics", s.gate.Unwrap()) }

func newServer(l net.Listener, status func() report.Status) (*Server, error) {
	bound := &conns.Bound{Max: maxConns}
	gate, err := conns.NewGate(l, bound)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Server{
		gate:     gate,
		listener: &paced{gate, rate.NewLimiter(maxRate, maxRate), ctx},
		cancel:   cancel,
		http: &http.Server{
			Handler:        handlerAt(l.Addr(), status),
			ReadTimeout:    readTimeout,
			WriteTimeout:   writeTimeout,
			MaxHeaderBytes: maxHeader,
			ConnState:      bound.Track,
		},
	}
	s.http.SetKeepAlivesEnabled(false)
	return s, nil
}

// handlerAt returns the handler for a listener's address. On a loopback address it answers only requests for
// localhost or an IP address: otherwise a web page in a browser of this host could read the answers under
// a name of its own that resolves to the loopback address (DNS rebinding).
func handlerAt(addr net.Addr, status func() report.Status) http.Handler {
	h := NewHandler(status)
	if tcp, ok := addr.(*net.TCPAddr); !ok || !tcp.IP.IsLoopback() {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !localHost(r.Host) {
			http.Error(w, "on a loopback address, only requests for localhost or an IP address are answered",
				http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// localHost reports whether the field Host of a request is localhost or an IP address, each perhaps with a port,
// or empty, which no browser sends.
func localHost(field string) bool {
	host, _, err := net.SplitHostPort(field)
	if err != nil {
		host = strings.Trim(field, "[]")
	}
	_, err = netip.ParseAddr(host)
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

// listen shortens the queue of connections, so that one that waits is soon served. It avoids
// MPTCP, which Landlock does not restrict.
func listen(addr string) (net.Listener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	l, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	raw, err := l.(*net.TCPListener).SyscallConn()
	if err == nil {
		var failed error
		err = raw.Control(func(fd uintptr) { failed = unix.Listen(int(fd), backlog) })
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves requests until Close.
func (s *Server) Serve() error {
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends Serve and closes all connections. Idempotent.
func (s *Server) Close() error {
	err := s.http.Close()
	s.cancel()
	if closeErr := s.listener.Close(); !errors.Is(closeErr, net.ErrClosed) { // Serve has closed it, if it was called
		err = errors.Join(err, closeErr)
	}
	return err
}

// paced accepts connections at a limited rate until ctx ends.
type paced struct {
	net.Listener
	limit *rate.Limiter
	ctx   context.Context
}

func (p *paced) Accept() (net.Conn, error) {
	if err := p.limit.Wait(p.ctx); err != nil {
		return nil, net.ErrClosed
	}
	return p.Listener.Accept()
}
