package device

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// server is a name server whose answer to any name a test changes.
type server struct {
	mu     sync.Mutex
	answer []netip.Addr // nil: no such name
}

var errNoName = errors.New("no such host")

func (s *server) set(answer ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = addrs(answer...)
}

func (s *server) resolve(context.Context, string, string) ([]netip.Addr, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.answer == nil {
		return nil, errNoName
	}
	return slices.Clone(s.answer), nil
}

func addrs(texts ...string) (out []netip.Addr) {
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func TestLiteralPeersAreThereAtOnce(t *testing.T) {
	l := NewPeerList([]string{"fe80::1%eth0", "10.0.0.2", "::ffff:10.0.0.1", "10.0.0.2", "a.example"}, quiet)
	if want := addrs("10.0.0.1", "10.0.0.2", "fe80::1"); !slices.Equal(l.Addrs(), want) {
		t.Errorf("got %v, want %v", l.Addrs(), want)
	}
}

// A name is followed as its answers change; while it has none the last ones
// stay, and that is said once.
func TestPeersFollowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		var dns server
		dns.set("10.0.0.3", "::ffff:10.0.0.2")
		l := NewPeerList([]string{"10.0.0.1", "pods"}, slog.New(slog.NewTextHandler(&text, nil)))
		l.resolve = dns.resolve
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		want := func(when string, list ...string) {
			t.Helper()
			time.Sleep(refreshPeers + time.Millisecond)
			synctest.Wait()
			if got := l.Addrs(); !slices.Equal(got, addrs(list...)) {
				t.Errorf("%s: %v, want %v", when, got, list)
			}
		}
		want("first", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		before := &l.Addrs()[0]
		want("unchanged", "10.0.0.1", "10.0.0.2", "10.0.0.3")
		if &l.Addrs()[0] != before {
			t.Error("an unchanged list was replaced")
		}
		dns.set("10.0.0.4")
		want("changed", "10.0.0.1", "10.0.0.4")
		dns.set()
		time.Sleep(time.Hour)
		want("lost", "10.0.0.1", "10.0.0.4")
		dns.set("10.0.0.5")
		want("found again", "10.0.0.1", "10.0.0.5")
		cancel()
		<-ended
		if n := strings.Count(text.String(), "cannot look up peer"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, text.String())
		}
		if !strings.Contains(text.String(), "again") {
			t.Errorf("the end was not said:\n%s", text.String())
		}
	})
}

// Run ends with its context also while a name server keeps silent.
func TestPeersEndDuringLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewPeerList([]string{"pods"}, quiet)
		l.resolve = func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		synctest.Wait()
		cancel()
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("still running")
		}
	})
}
