package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/link/kernel/capsule"
)

// Limits of the clients on the network.
const (
	maxHeader = 8 << 10 // bytes
	maxConns  = 64
	// maxRate is connections per second. Each takes about 0.1 ms of a processor, and a scrape
	// 60 KB of the network, so a flood takes a hundredth of one, and 50 Mbit/s. Prometheus and
	// probes need about one a second.
	maxRate = 100
	backlog = 64 // connections that wait to be accepted
)

// Server serves the probes and the metrics, and nothing else, over TCP.
type Server struct{ *conns.Server }

// Listen listens on a TCP address, host:port. Connections wait until Run.
func Listen(addr string, status func() report.Status) (*Server, error) {
	l, err := listen(addr)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics: %w: choose another address with --metrics-listen", err)
	}
	return newServer(l, status), nil
}

// Import returns a server that continues the listener of another process, the part "metrics" of a capsule. Connections
// wait until Run.
func Import(r *capsule.Reader, status func() report.Status) (*Server, error) {
	l, err := r.Listener("metrics")
	if err != nil {
		return nil, fmt.Errorf("take over the metrics listener: %w", err)
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		err := fmt.Errorf("take over the metrics listener: it is a %s socket", l.Addr().Network())
		return nil, errors.Join(err, l.Close())
	}
	return newServer(tcp, status), nil
}

// Export puts the listener into a capsule, as the part "metrics".
func (s *Server) Export(w *capsule.Writer) { w.PutListener("metrics", s.Unwrap()) }

func newServer(l *net.TCPListener, status func() report.Status) *Server {
	paced := &paced{l, rate.NewLimiter(maxRate, maxRate)}
	return &Server{conns.New(paced, handlerAt(l.Addr(), status), maxHeader, maxConns)}
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
func listen(addr string) (*net.TCPListener, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	tcp, err := config.Listen(context.Background(), "tcp", addr)
	if err != nil {
		return nil, err
	}
	l := tcp.(*net.TCPListener)
	raw, err := l.SyscallConn()
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

// Run serves until Close. It logs why it ends earlier.
func (s *Server) Run(log *slog.Logger) {
	if err := s.Serve(); err != nil {
		log.Error("metrics are no longer served over TCP; restart the daemon to serve them again", "err", err)
	}
}

// Close ends Run and closes all connections. Idempotent.
func (s *Server) Close() error { return s.Server.Close(0) }

// paced accepts connections at a limited rate.
type paced struct {
	*net.TCPListener
	limit *rate.Limiter
}

// Accept implements [net.Listener].
func (p *paced) Accept() (net.Conn, error) {
	if err := p.limit.Wait(context.Background()); err != nil { // waits 1/maxRate at most: it has one caller
		return nil, err
	}
	return p.TCPListener.Accept()
}
