package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"ipoibd/link/linktest/nstest"
)

const (
	// stormSeconds is the length of each measurement.
	stormSeconds = 3
	// leastShare is what an attack must leave of the throughput, in the better of two
	// measurements: the attackers run on the same processors as the daemons and iperf3, and
	// others use the machine too.
	leastShare = 0.5
	// moreDescriptors bounds what the clients of both servers may cost: 64 and 128 connections,
	// 64 orders, 16 followers, two goroutines each.
	moreDescriptors = 300
	// moreGoroutines also includes those of connections that were just closed.
	moreGoroutines = 5 * moreDescriptors
	// scrapeLimit is Prometheus's default time-out of a scrape.
	scrapeLimit = 10 * time.Second
)

// Clients of the network abuse the metrics, and processes of the host the control socket, in
// every way at once: iperf3 on ib0 hardly notices, the daemon's use of memory, descriptors and
// goroutines is bounded, a legitimate scrape is answered, and in the end nothing is left of it.
func TestAbuseMetrics(t *testing.T) {
	if nstest.Enter(t) {
		return
	}
	s := newSiege(t, func(h *host) { h.join("--metrics-listen", h.metricsAddr()) })
	s.metricsRefuse()
	s.storm(func() {
		start, before := time.Now(), s.a.cpu()
		time.Sleep(stormSeconds * time.Second)
		percent := 100 * (s.a.cpu() - before).Seconds() / time.Since(start).Seconds()
		if t.Logf("the attack costs %.0f %% of a core (goal: %v %%)", percent, goalCPU); percent > failCPU {
			t.Errorf("the attack costs %.0f %% of a core, want at most %v %%", percent, failCPU)
		}
	})
	var quiet, attacked float64
	for range 2 {
		rate := s.b.throughput(s.a, fmt.Sprint(stormSeconds))
		s.storm(func() { attacked = max(attacked, s.b.throughput(s.a, fmt.Sprint(stormSeconds))) })
		if quiet == 0 || rate < quiet {
			quiet = rate
		}
	}
	t.Logf("iperf3: %.0f Mbit/s, under attack %.0f Mbit/s: %.2f", quiet, attacked, attacked/quiet)
	if attacked < leastShare*quiet {
		t.Errorf("iperf3 notices: %.0f Mbit/s under attack, %.0f without", attacked, quiet)
	}
	eventually(t, controlLimit, "the connections end", func() bool {
		now := s.a.daemon.status()
		return now.FDs <= s.before[s.a].status.FDs+slack && now.Goroutines <= s.before[s.a].status.Goroutines+slack
	})
	s.end(1)
}

// throughput measures a TCP connection of some seconds, in Mbit/s.
func (h *host) throughput(to *host, seconds string) float64 {
	h.tb.Helper()
	var report struct {
		End struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	out := h.iperf3(to, "--client", to.ip4(), "--time", seconds, "--json")
	if err := json.Unmarshal([]byte(out), &report); err != nil || report.End.Received.Rate == 0 {
		h.tb.Fatalf("iperf3: %v\n%s", err, out)
	}
	return report.End.Received.Rate / 1e6
}

// dialMetrics connects from mallory's host. Connections wait while others are served. Their end
// is a reset, so that none is left in the queue of the daemon.
func (s *siege) dialMetrics(ctx context.Context) (conn net.Conn, err error) {
	s.mallory.Do(func() {
		conn, err = (&net.Dialer{Timeout: controlLimit}).DialContext(ctx, "tcp", s.a.metricsAddr())
	})
	if err == nil {
		err = errors.Join(conn.(*net.TCPConn).SetLinger(0), conn.SetDeadline(time.Now().Add(controlLimit)))
	}
	return conn, err
}

// metricsRefuse sends requests that must be refused, or answered by the end of the connection.
// None reaches the orders.
func (s *siege) metricsRefuse() {
	s.t.Helper()
	for name, sent := range map[string][]byte{
		"noise":       random(rand.NewChaCha8([32]byte{}), 1<<10),
		"TLS":         []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
		"status":      request("GET", "/v1/status", ""),
		"an order":    request("POST", "/v1/suspend", "Content-Length: 2\r\n\r\n{}"),
		"a method":    request("POST", "/metrics", ""),
		"long path":   request("GET", "/"+strings.Repeat("a", 1<<20), ""),
		"long header": request("GET", "/metrics", "X: "+strings.Repeat("a", 1<<20)+"\r\n"),
		"huge body":   append(request("POST", "/livez", "Content-Length: 67108864\r\n"), make([]byte, 8<<20)...),
	} {
		conn, err := s.dialMetrics(s.t.Context())
		if err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
		go func() { _, _ = conn.Write(sent) }() // fails if the daemon closes the connection
		answer, err := io.ReadAll(conn)
		conn.Close()
		if netErr, ok := errors.AsType[net.Error](err); ok && netErr.Timeout() {
			s.t.Errorf("%s: the daemon does not close the connection", name)
		}
		line, _, _ := bytes.Cut(answer, []byte("\r\n"))
		s.t.Logf("%s: %q", name, line)
		if len(answer) > 0 && !bytes.HasPrefix(line, []byte("HTTP/1.1 4")) {
			s.t.Errorf("%s: answered by %q, want an error", name, line)
		}
	}
	if state := s.a.daemon.status().Devices[0].State; state != "open" {
		s.t.Errorf("the device is %s", state)
	}
}

// storm runs all attacks at once while work runs, and checks what they cost the daemon.
func (s *siege) storm(work func()) {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	var attackers sync.WaitGroup
	for _, attack := range []struct {
		clients int
		once    func(context.Context)
	}{
		{16, s.scrapeAll},
		{1000, s.stayQuiet},
		{16, s.readSlowly},
		{16, s.talkNonsense},
		{8, s.crowdControl},
	} {
		for range attack.clients {
			attackers.Go(func() {
				for ctx.Err() == nil {
					attack.once(ctx)
				}
			})
		}
	}
	var worst status
	var slowest time.Duration
	attackers.Go(func() {
		for ctx.Err() == nil {
			start := time.Now()
			now, err := s.a.daemon.usage(ctx)
			if err == nil || ctx.Err() == nil {
				slowest = max(slowest, time.Since(start))
			}
			if err == nil {
				worst.FDs, worst.Goroutines = max(worst.FDs, now.FDs), max(worst.Goroutines, now.Goroutines)
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
	work()
	start := time.Now()
	err := s.honestScrape(ctx)
	s.t.Logf("a legitimate scrape during the attack: %v after %s; a status on the control socket took %s at most", err, time.Since(start).Round(time.Millisecond), slowest.Round(time.Millisecond))
	stop()
	attackers.Wait()
	start = time.Now()
	if err := s.honestScrape(s.t.Context()); err != nil {
		s.t.Errorf("a legitimate scrape after the attack: %v", err)
	}
	s.t.Logf("a scrape after the attack took %s", time.Since(start).Round(time.Millisecond))
	before := s.before[s.a].status
	s.t.Logf("during the attack: descriptors %d -> %d, goroutines %d -> %d", before.FDs, worst.FDs, before.Goroutines, worst.Goroutines)
	if worst.FDs == 0 || worst.FDs > before.FDs+moreDescriptors || worst.Goroutines > before.Goroutines+moreGoroutines {
		s.t.Errorf("%d descriptors and %d goroutines during the attack, were %d and %d", worst.FDs, worst.Goroutines, before.FDs, before.Goroutines)
	}
	if slowest > answerLimit {
		s.t.Errorf("a status request took %s", slowest)
	}
}

// usage requests the status without starting a program.
func (d *daemon) usage(ctx context.Context) (s status, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://ipoibd/v1/status", http.NoBody)
	if err != nil {
		return s, err
	}
	resp, err := d.client().Do(req)
	if err != nil {
		return s, err
	}
	defer resp.Body.Close()
	return s, json.NewDecoder(resp.Body).Decode(&s)
}

// honestScrape scrapes as Prometheus does, with its time-out.
func (s *siege) honestScrape(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, scrapeLimit)
	defer cancel()
	conn, err := s.dialMetrics(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	if _, err := conn.Write(request("GET", "/metrics", "")); err != nil {
		return err
	}
	answer, err := io.ReadAll(conn)
	if err == nil && !bytes.Contains(answer, []byte("ipoibd_interface_ready{")) {
		err = fmt.Errorf("answered by %.200q", answer)
	}
	return err
}

// scrapeAll is a client that scrapes as fast as it can.
func (s *siege) scrapeAll(ctx context.Context) {
	if conn, err := s.dialMetrics(ctx); err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		_, _ = conn.Write(request("GET", "/metrics", ""))
		_, _ = io.Copy(io.Discard, conn)
	}
}

// stayQuiet is a client that connects and says nothing.
func (s *siege) stayQuiet(ctx context.Context) {
	if conn, err := s.dialMetrics(ctx); err == nil {
		defer conn.Close()
		defer context.AfterFunc(ctx, func() { conn.Close() })()
		_, _ = io.Copy(io.Discard, conn)
	}
}

// readSlowly is a client that reads a few bytes a second of its answer.
func (s *siege) readSlowly(ctx context.Context) {
	conn, err := s.dialMetrics(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.(*net.TCPConn).SetReadBuffer(1)
	_, _ = conn.Write(request("GET", "/metrics", ""))
	for err == nil && ctx.Err() == nil {
		_, err = conn.Read(make([]byte, 16))
		time.Sleep(100 * time.Millisecond)
	}
}

// talkNonsense is a client that sends a header without an end.
func (s *siege) talkNonsense(ctx context.Context) {
	conn, err := s.dialMetrics(ctx)
	if err != nil {
		return
	}
	defer conn.Close()
	for err == nil && ctx.Err() == nil {
		_, err = conn.Write([]byte("GET /metrics HTTP/1.1\r\nX: " + strings.Repeat("a", 100)))
		time.Sleep(100 * time.Millisecond)
	}
}

// crowdControl opens connections to the control socket, of which some ask and read nothing.
func (s *siege) crowdControl(ctx context.Context) {
	var conns []net.Conn
	for i := range openConns / 20 {
		conn, err := net.Dial("unix", s.a.daemon.control)
		if err != nil {
			break
		}
		if conns = append(conns, conn); i%20 == 0 {
			_, _ = conn.Write(request("GET", []string{"/v1/status", "/metrics", "/v1/events?follow=true"}[i/20%3], ""))
		}
	}
	select {
	case <-ctx.Done():
	case <-time.After(time.Second):
	}
	for _, conn := range conns {
		conn.Close()
	}
}
