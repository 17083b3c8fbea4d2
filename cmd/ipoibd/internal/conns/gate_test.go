package conns

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// While a gate is paused, connections wait; those that were accepted before are answered first, and the
// server can then be closed. Afterwards they are served, also by another server of the same socket.
func TestGate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	entered := make(chan struct{}, 100)
	slowly := func(w http.ResponseWriter, _ *http.Request) {
		entered <- struct{}{}
		time.Sleep(20 * time.Millisecond)
		_, _ = io.WriteString(w, "served")
	}
	server := New(l.(Listener), http.HandlerFunc(slowly), http.DefaultMaxHeaderBytes, 100)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	get := func() error {
		resp, err := client.Get("http://x/")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		_, err = io.ReadAll(resp.Body)
		return err
	}
	for range 3 {
		if err := get(); err != nil {
			t.Fatal(err)
		}
		server.Pause()
		answered := make(chan error, 1)
		go func() { answered <- get() }()
		select {
		case err := <-answered:
			t.Fatalf("a paused gate has let a client in: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
		server.Resume()
		if err := <-answered; err != nil {
			t.Fatal(err)
		}
	}
	var clients sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		clients.Go(func() { errs[i] = get() })
	}
	for range 4 { // three from above
		<-entered
	}
	server.Pause()
	file, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := server.Close(0); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	heir, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	next := &http.Server{Handler: server.HTTP.Handler}
	go func() { _ = next.Serve(heir) }()
	defer next.Close()
	clients.Wait()
	for i, err := range errs {
		if err != nil {
			t.Errorf("client %d: %v", i, err)
		}
	}
}

// A client that sends no request delays a pause by a limited time, and one that is kept does not.
func TestGateWithSilentClients(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := New(l.(Listener), http.NotFoundHandler(), http.DefaultMaxHeaderBytes, 100)
	accepted := make(chan net.Conn)
	server.HTTP.ConnState = func(c net.Conn, s http.ConnState) {
		if server.track(c, s); s == http.StateNew {
			accepted <- c
		}
	}
	go func() { _ = server.Serve() }()
	defer server.Close(0)
	silent, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	c := <-accepted
	began := time.Now()
	server.Pause()
	if took := time.Since(began); took < answerLimit || took > 10*answerLimit {
		t.Errorf("a silent client has delayed a pause by %v", took)
	}
	server.Resume()
	server.Keep(c)
	began = time.Now()
	server.Pause()
	if took := time.Since(began); took > answerLimit {
		t.Errorf("a client that is kept has delayed a pause by %v", took)
	}
}

// Neither a gate without a server nor one that is closed while it is paused blocks its callers.
func TestGateWithoutServer(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	gate := newGate(l.(Listener), &bound{max: 1})
	gate.Resume()
	gate.Pause()
	ended := make(chan error, 1)
	go func() {
		_, err := gate.Accept()
		ended <- err
	}()
	if err := gate.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("a closed gate accepts")
	}
}
