package control

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/cmd/ipoibd/internal/conns"
	"ipoibd/cmd/ipoibd/internal/journal"
)

// pipes is an in-memory listener, for tests in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (*pipes) SetDeadline(time.Time) error { return nil }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (*pipes) Addr() net.Addr { return &net.UnixAddr{} }

func (p *pipes) dial() net.Conn {
	ours, theirs := net.Pipe()
	p.conns <- theirs
	return ours
}

// inMemory runs a test in virtual time against a server that serves every user. Its daemon
// carries out orders by work.
func inMemory(t *testing.T, work func(context.Context) error, test func(t *testing.T, f *fake, s *Server, p *pipes)) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.work = work
		p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		s := newServer(p, f.daemon())
		s.HTTP.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, clientKey{}, client{Conn: c}) // of root
		}
		var served sync.WaitGroup
		served.Go(func() {
			if err := s.Serve(); err != nil {
				t.Errorf("serve: %v", err)
			}
		})
		test(t, f, s, p)
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		served.Wait()
	})
}

func send(t *testing.T, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

const followRequest = "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n"

// A follower that does not read loses its place after conns.Timeout; neither the
// journal nor another follower waits for it.
func TestFollowerThatDoesNotReadIsDropped(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, f *fake, s *Server, p *pipes) {
		deaf, good := p.dial(), p.dial()
		defer deaf.Close()
		defer good.Close()
		send(t, deaf, followRequest)
		send(t, good, followRequest)
		var got []byte
		go func() { got, _ = io.ReadAll(good) }() // ends with the connection
		synctest.Wait()
		began := time.Now()
		for range 2 * journal.Size {
			f.log.Add(journal.Entry{Text: "x"})
		}
		if time.Since(began) != 0 {
			t.Errorf("the journal waited %s", time.Since(began))
		}
		synctest.Wait()
		if len(s.followers) != 2 {
			t.Errorf("%d followers, want 2", len(s.followers))
		}
		time.Sleep(conns.Timeout + time.Millisecond)
		synctest.Wait()
		if len(s.followers) != 1 {
			t.Errorf("%d followers after %s, want the good one", len(s.followers), conns.Timeout)
		}
		f.log.Add(journal.Entry{Text: "the last one"})
		synctest.Wait()
		s.end()
		synctest.Wait()
		good.Close()
		synctest.Wait()
		if !strings.Contains(string(got), "the last one") {
			t.Error("the good one was held up")
		}
	})
}

// A follower stays connected for days without an entry.
func TestQuietFollowerStays(t *testing.T) {
	inMemory(t, nil, func(t *testing.T, _ *fake, s *Server, p *pipes) {
		c := p.dial()
		defer c.Close()
		go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
		send(t, c, followRequest)
		time.Sleep(48 * time.Hour)
		synctest.Wait()
		if len(s.followers) != 1 {
			t.Error("it was dropped")
		}
		c.Close()
		synctest.Wait()
		if len(s.followers) != 0 {
			t.Error("its place is taken though it left")
		}
	})
}

func TestRequestThatDoesNotEndIsCutOff(t *testing.T) {
	for _, part := range []string{
		"GET /v1/sta", "GET /v1/status HTTP/1.1\r\nHost: x\r\n",
		"POST /v1/suspend HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{", "",
	} {
		inMemory(t, nil, func(t *testing.T, f *fake, _ *Server, p *pipes) {
			c := p.dial()
			defer c.Close()
			began := time.Now()
			send(t, c, part)
			if _, err := io.ReadAll(c); err != nil {
				t.Errorf("%q: %v", part, err)
			}
			if took := time.Since(began); took > conns.Timeout+time.Second {
				t.Errorf("%q: cut off after %s", part, took)
			}
			if got := f.taken(); got != nil {
				t.Errorf("%q ordered %q", part, got)
			}
		})
	}
}

const suspendRequest = "POST /v1/suspend HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"

// An order may take longer than the time limit of a request; its answer still arrives.
func TestOrderMayTakeAMinute(t *testing.T) {
	work := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Minute):
			return nil
		}
	}
	inMemory(t, work, func(t *testing.T, _ *fake, _ *Server, p *pipes) {
		c := p.dial()
		defer c.Close()
		send(t, c, suspendRequest)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Errorf("status %s", resp.Status)
		}
	})
}

// An order is cancelled when its client leaves, or when the daemon ends.
func TestOrderIsCancelled(t *testing.T) {
	for name, cancel := range map[string]func(*Server, net.Conn){
		"client leaves": func(_ *Server, c net.Conn) { c.Close() },
		"daemon ends":   func(s *Server, _ net.Conn) { s.end() },
	} {
		t.Run(name, func(t *testing.T) {
			var cause error
			work := func(ctx context.Context) error {
				<-ctx.Done()
				cause = ctx.Err()
				return cause
			}
			inMemory(t, work, func(t *testing.T, _ *fake, s *Server, p *pipes) {
				c := p.dial()
				defer c.Close()
				send(t, c, suspendRequest)
				synctest.Wait()
				go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
				cancel(s, c)
				synctest.Wait()
				if !errors.Is(cause, context.Canceled) {
					t.Errorf("the order ended with %v", cause)
				}
			})
		})
	}
}

// Close does not wait for an order that does not end.
func TestCloseIsBounded(t *testing.T) {
	work := func(context.Context) error { time.Sleep(time.Hour); return nil }
	inMemory(t, work, func(t *testing.T, _ *fake, s *Server, p *pipes) {
		c := p.dial()
		defer c.Close()
		send(t, c, suspendRequest)
		synctest.Wait()
		began := time.Now()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took < closeTimeout || took > 2*closeTimeout {
			t.Errorf("took %s, want %s", took, closeTimeout)
		}
		time.Sleep(time.Hour) // it ends after all
	})
}

// At the limit, the server closes the oldest idle connection. New clients get an answer, and a
// follower is not cut off.
func TestConnectionsAreBounded(t *testing.T) {
	f := newFake()
	path := serve(t, f)
	follower := followConn(t, path)
	var idle []net.Conn
	for range 2 * maxIdle {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		idle = append(idle, c)
	}
	began := time.Now()
	if _, err := GetStatus(context.Background(), path); err != nil {
		t.Errorf("beside %d connections: %v", len(idle), err)
	}
	t.Logf("answered beside %d connections in %s", len(idle), time.Since(began))
	for i, c := range idle[:maxIdle] {
		if err := c.SetReadDeadline(time.Now().Add(conns.Timeout / 2)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Fatalf("old connection %d: %v", i, err)
		}
	}
	f.log.Add(journal.Entry{Text: "still there"})
	if err := follower.SetReadDeadline(time.Now().Add(conns.Timeout)); err != nil {
		t.Fatal(err)
	}
	for got := ""; !strings.Contains(got, "still there"); {
		b := make([]byte, 4096)
		n, err := follower.Read(b)
		if err != nil {
			t.Fatalf("the follower was cut off: %v", err)
		}
		got += string(b[:n])
	}
}

// Orders that do not end leave room for other requests. Further orders are refused, until a
// client leaves.
func TestOrdersAreBounded(t *testing.T) {
	f := newFake()
	f.work = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	path := serve(t, f)
	var waiting []net.Conn
	for range maxOrders {
		waiting = append(waiting, orderConn(t, path))
	}
	taken := 0
	eventually(t, "the orders are under way", func() bool {
		taken += len(f.taken())
		return taken == maxOrders
	})
	for range 2 * maxIdle {
		orderConn(t, path)
	}
	if code, text := raw(t, path, "POST", "/v1/resume", "{}"); code != http.StatusServiceUnavailable {
		t.Errorf("one more: %d %q", code, text)
	}
	if _, err := GetStatus(t.Context(), path); err != nil {
		t.Errorf("a status beside them: %v", err)
	}
	if more := f.taken(); more != nil {
		t.Errorf("%d more were carried out", len(more))
	}
	waiting[0].Close()
	eventually(t, "a place is free", func() bool {
		orderConn(t, path)
		return len(f.taken()) > 0
	})
}

// orderConn returns a connection that waits for an order.
func orderConn(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	send(t, c, suspendRequest)
	return c
}

// followConn returns a connection that follows the journal.
func followConn(t *testing.T, path string) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, "GET /v1/events?follow=true HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil { // the header of the answer has arrived
		t.Fatal(err)
	}
	return c
}
