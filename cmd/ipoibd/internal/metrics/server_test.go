package metrics

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/report"
)

// limit bounds every wait in real time. It is ten times the usual duration.
const limit = 10 * time.Second

func get(t *testing.T, h http.Handler, method, path string) (code int, body string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, path, http.NoBody))
	return w.Code, w.Body.String()
}

// A probe answers for all interfaces, and names those that fail it.
func TestProbes(t *testing.T) {
	up := report.Interface{Name: "ib0", State: "up", Reason: "none", Carrier: true, Time: now, Groups: []report.Group{{}}}
	down, hung := up, up
	down.Name, down.State, down.Reason = "ib1", "down", "admin_down"
	hung.Name, hung.Time = "ib2", now.Add(-time.Hour)
	for _, c := range []struct {
		path string
		list []report.Interface
		code int
		body string
	}{
		{"/readyz", nil, 200, "ok\n"},
		{"/readyz", []report.Interface{up}, 200, "ok\n"},
		{"/readyz", []report.Interface{up, down}, 503, "interface ib1 is not up: admin_down\n"},
		{"/readyz", []report.Interface{down, hung}, 503, "interface ib1 is not up: admin_down\ninterface ib2 is not up: it has not reported for 1h0m0s; a system call or a verb hangs\n"},
		{"/livez", []report.Interface{up, down}, 200, "ok\n"},
		{"/livez", []report.Interface{up, hung}, 503, "interface ib2 is not up: it has not reported for 1h0m0s; a system call or a verb hangs\n"},
	} {
		h := NewHandler(func() report.Status { return report.Status{Time: now, Interfaces: c.list} })
		if code, body := get(t, h, "GET", c.path); code != c.code || body != c.body {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, body, c.code, c.body)
		}
	}
}

// A web page cannot read the metrics of a loopback address under a name of its own. Those of other addresses
// may have any name.
func TestMetricsOnLoopbackAnswerNoOtherName(t *testing.T) {
	for _, c := range []struct {
		listen, host string
		code         int
	}{
		{"127.0.0.1", "127.0.0.1:9471", 200},
		{"127.0.0.1", "localhost:9471", 200},
		{"127.0.0.1", "LOCALHOST", 200},
		{"::1", "[::1]:9471", 200},
		{"::1", "[::1]", 200},
		{"127.0.0.1", "", 200},
		{"127.0.0.1", "evil.example", 403},
		{"127.0.0.1", "evil.example:9471", 403},
		{"::1", "localhost.evil.example:9471", 403},
		{"127.0.0.1", "127.0.0.1.evil.example", 403},
		{"192.0.2.1", "node7.example:9471", 200},
		{"::", "node7.example:9471", 200},
	} {
		h := handlerAt(&net.TCPAddr{IP: net.ParseIP(c.listen), Port: 9471}, func() report.Status { return report.Status{} })
		r, w := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody), httptest.NewRecorder()
		r.Host = c.host
		if h.ServeHTTP(w, r); w.Code != c.code {
			t.Errorf("Host %q at %s: %d, want %d", c.host, c.listen, w.Code, c.code)
		}
	}
}

// Nothing but the three paths is served.
func TestNothingElseIsServed(t *testing.T) {
	h := NewHandler(func() report.Status { return report.Status{} })
	for _, c := range []struct {
		method, path string
		code         int
	}{
		{"GET", "/metrics", 200},
		{"GET", "/v1/status", 404},
		{"POST", "/v1/suspend", 404},
		{"GET", "/", 404},
		{"GET", "/debug/pprof/", 404},
		{"POST", "/metrics", 405},
		{"DELETE", "/readyz", 405},
	} {
		if code, _ := get(t, h, c.method, c.path); code != c.code {
			t.Errorf("%s %s: %d, want %d", c.method, c.path, code, c.code)
		}
	}
}

// A client that accepts OpenMetrics gets it, complete.
func TestOpenMetrics(t *testing.T) {
	s := sample(t)
	h := NewHandler(func() report.Status { return s })
	r := httptest.NewRequest(http.MethodGet, "/metrics", http.NoBody)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if kind := w.Header().Get("Content-Type"); !strings.HasPrefix(kind, "application/openmetrics-text; version=1.0.0") {
		t.Errorf("Content-Type %s", kind)
	}
	for _, want := range []string{"# EOF\n", "# TYPE ipoibd_interface_drops counter\n", "# TYPE ipoibd_device_driver_counter unknown\n", `ipoibd_interface_ready{interface="ib1"} 0`} {
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("%q is missing", want)
		}
	}
}

// server serves an empty status until the test ends.
func server(t *testing.T) *Server {
	t.Helper()
	s, err := Listen("127.0.0.1:0", func() report.Status { return report.Status{} })
	if err != nil {
		t.Fatal(err)
	}
	var served sync.WaitGroup
	served.Go(func() {
		if err := s.Serve(); err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		served.Wait()
	})
	return s
}

func dial(t *testing.T, s *Server) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", s.Listener.Addr().String())
	if err == nil {
		t.Cleanup(func() { c.Close() })
		err = c.SetDeadline(time.Now().Add(limit))
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A connection carries one request; a header that is too long is refused.
func TestRequestsAreBounded(t *testing.T) {
	s := server(t)
	for _, c := range []struct {
		header string
		code   int
	}{{"", 200}, {"X: " + strings.Repeat("a", maxHeader+4096) + "\r\n", 431}} { // net/http adds 4096
		conn := dial(t, s)
		if _, err := fmt.Fprintf(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n%s\r\n", c.header); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != c.code || !resp.Close {
			t.Errorf("%d, keeps the connection: %t; want %d and its end", resp.StatusCode, !resp.Close, c.code)
		}
	}
}

// Silent clients do not lock others out, and are cut off.
func TestSilentClients(t *testing.T) {
	s := server(t)
	began := time.Now()
	silent := dial(t, s)
	if _, err := io.ReadAll(silent); err != nil {
		t.Fatalf("a silent client: %v", err)
	}
	if took := time.Since(began); took < conns.Timeout || took > conns.Timeout+limit/2 {
		t.Errorf("cut off after %s, want %s", took, conns.Timeout)
	}
}

// A flood is served at maxRate, and a further client waits for its turn only.
func TestFloodIsPaced(t *testing.T) {
	s := server(t)
	const flood = 2 * maxRate
	began := time.Now()
	var clients sync.WaitGroup
	places := make(chan struct{}, maxConns) // the server closes the oldest of more connections
	for range flood {
		places <- struct{}{}
		conn := dial(t, s)
		clients.Go(func() {
			defer func() { <-places }()
			fmt.Fprint(conn, "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
			if answer, err := io.ReadAll(conn); err != nil || !strings.Contains(string(answer), "200 OK") {
				t.Errorf("%v: %q", err, answer)
			}
		})
	}
	clients.Wait()
	took := time.Since(began)
	t.Logf("%d clients in %s", flood, took)
	if least := time.Second * (flood - maxRate - 1) / maxRate; took < least {
		t.Errorf("%d clients in %s, want %s at least", flood, took, least)
	}
}

// An address that is in use is a mistake that names the flag. Close ends a server that never
// served.
func TestAddressInUse(t *testing.T) {
	s, err := Listen("127.0.0.1:0", nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = Listen(s.Listener.Addr().String(), nil)
	if err == nil || !strings.Contains(err.Error(), "address already in use: choose another address with --metrics-listen") {
		t.Errorf("%v", err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
	if err := s.Serve(); err != nil {
		t.Errorf("serve after close: %v", err)
	}
}
