package control

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"ipoibd/cmd/ipoibd/internal/journal"
	"ipoibd/cmd/ipoibd/internal/report"
	"ipoibd/hca"
)

func sample() report.Status {
	gid := hca.GIDEntry{GID: hca.GID{10: 0xff, 11: 0xff, 12: 10, 15: 1}, Type: hca.GIDTypeRoCEv2}
	return report.Status{
		Version: "v", PID: 7, Started: time.Unix(1e9, 0).UTC(),
		Devices: []report.Device{{
			Name: "soft", State: report.DeviceOpen, Attr: &hca.DeviceAttr{NodeGUID: hca.GUID{1, 2}, Transport: hca.TransportSoftware},
			Ports:    []report.Port{{Num: 1, PortAttr: hca.PortAttr{State: hca.PortActive, LinkLayer: hca.LinkLayerEthernet, GIDs: []hca.GIDEntry{gid}}}},
			Counters: report.Counters{"c": {Value: 1}},
		}},
		Interfaces: []report.Interface{{Name: "ib0", QP: &report.QP{QPN: 0x123456, PKey: 0x8001, QKey: 0xb1b, State: "RTS", GID: hca.GID{0xfe, 0x80, 15: 1}}}},
	}
}

// The client gets the status as the daemon returned it, with its enumerations and addresses.
func TestStatusRoundTrip(t *testing.T) {
	got, err := GetStatus(t.Context(), serve(t, newFake()))
	if err != nil {
		t.Fatal(err)
	}
	if want := sample(); !reflect.DeepEqual(*got, want) {
		t.Errorf("got  %+v\nwant %+v", *got, want)
	}
}

func TestSocketIsPrivateAndExclusive(t *testing.T) {
	path := serve(t, newFake())
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st.Mode().Perm() != 0o600 {
		t.Errorf("mode %o, want 600", st.Mode().Perm())
	}
	if _, err := Listen(path, newFake().daemon()); !errors.Is(err, ErrRunning) || !strings.HasSuffix(err.Error(), "socket: stop it, or choose another path with --control") {
		t.Errorf("second daemon: %v", err)
	}
}

// staleSocket returns the path of a socket that its process left behind.
func staleSocket(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	return path
}

// Of daemons that start at the same time over the socket of one that was killed, one serves, and its socket stays.
func TestOneOfManyReplacesTheStaleSocket(t *testing.T) {
	for range 20 {
		path := staleSocket(t)
		var starts sync.WaitGroup
		var serving atomic.Int32
		for range 8 {
			starts.Go(func() {
				s, err := Listen(path, newFake().daemon())
				if errors.Is(err, ErrRunning) {
					return
				}
				if err != nil {
					t.Error(err)
					return
				}
				serving.Add(1)
				t.Cleanup(func() { s.Close() })
			})
		}
		starts.Wait()
		if n := serving.Load(); n != 1 {
			t.Fatalf("%d of 8 daemons serve, want 1", n)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A daemon starts although a former one left a lock file of another user, or one that others can read.
func TestForeignLockFileIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.sock")
	lock := filepath.Join(filepath.Dir(path), "c.lock")
	for name, change := range map[string]func() error{
		"others can read it": func() error { return os.Chmod(lock, 0o644) },
		"another user's": func() error {
			if os.Geteuid() != 0 { // only root can give a file away
				return nil
			}
			return os.Chown(lock, 65534, 65534)
		},
	} {
		if err := os.WriteFile(lock, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatal(err)
		}
		s, err := Listen(path, newFake().daemon())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestStaleSocketIsReplacedOtherFilesAreNot(t *testing.T) {
	path := staleSocket(t)
	s, err := Listen(path, newFake().daemon())
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(path, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path, newFake().daemon()); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "mine" {
		t.Errorf("the file was touched: %q, %v", b, err)
	}
}

func TestClientSaysWhatIsWrong(t *testing.T) {
	dir := t.TempDir()
	if _, err := GetStatus(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, ErrNotRunning) {
		t.Errorf("no socket: %v", err)
	}
	path := filepath.Join(dir, "c.sock")
	l, err := net.Listen("unix", path) // the kernel accepts connections for a process that is stopped
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	want := regexp.MustCompile(`c\.sock: the daemon has not answered within [\d.]+m?s: not responding \(stopped or hung\); 'ipoibd doctor' says what to do$`)
	nothing := func(journal.Entry) error { return nil }
	for name, request := range map[string]func(context.Context) error{
		"status":           func(ctx context.Context) error { _, err := GetStatus(ctx, path); return err },
		"events":           func(ctx context.Context) error { return GetEvents(ctx, path, 0, false, nothing) },
		"events, followed": func(ctx context.Context) error { return GetEvents(ctx, path, 0, true, nothing) },
		"an order":         func(ctx context.Context) error { return Post(ctx, path, &RecoverRequest{}) },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		if err := request(ctx); !errors.Is(err, ErrHangs) || !want.MatchString(err.Error()) {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
	if resp, err := do(t.Context(), 100*time.Millisecond, path, http.MethodGet, "/v1/events?follow=true", http.NoBody, nil); !errors.Is(err, ErrHangs) {
		if err == nil {
			resp.Body.Close()
		}
		t.Errorf("the header of an answer without an end: %v", err)
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		peer, self int
		want       bool
	}{{0, 0, true}, {0, 1000, true}, {1000, 1000, true}, {1001, 1000, false}, {1000, 0, false}} {
		if got := allowed(c.peer, c.self); got != c.want {
			t.Errorf("peer %d, daemon %d: %t", c.peer, c.self, got)
		}
	}
}

// Whatever a client sends, the server still answers the next one.
func TestGarbageIsSurvived(t *testing.T) {
	path := serve(t, newFake())
	for _, garbage := range []string{"", "\x00\xff", "GET /v1/nothing HTTP/1.1\r\nHost: x\r\n\r\n", "DELETE /v1/status HTTP/1.0\r\n\r\n", strings.Repeat("A", 1<<20)} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, _ = c.Write([]byte(garbage)) // the server may cut it short
		c.Close()
	}
	if _, err := GetStatus(t.Context(), path); err != nil {
		t.Error(err)
	}
}

// Another user is refused, and so is one that the kernel does not name.
func TestOtherUsersAreRefused(t *testing.T) {
	f := newFake()
	h := &Server{daemon: f.daemon()}
	for _, ctx := range []context.Context{
		t.Context(),
		withClient(t.Context(), &net.TCPConn{}), // without credentials
		context.WithValue(t.Context(), clientKey{}, client{uid: os.Geteuid() + 1}),
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, "/v1/suspend", http.NoBody))
		if w.Code != http.StatusForbidden || f.taken() != nil {
			t.Errorf("%v: status %d", ctx, w.Code)
		}
	}
}

// If the socket cannot be made, the error says what to do.
func TestListenErrorsSuggestControl(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// The kernel lets no one make a directory in /proc, as in a file system that is full or
	// read-only.
	for _, path := range []string{filepath.Join(file, "c.sock"), file, "/proc/ipoibd/c.sock"} {
		s, err := Listen(path, newFake().daemon())
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.HasSuffix(err.Error(), "choose another path with --control") {
			t.Errorf("%s: %v", path, err)
		}
	}
}
