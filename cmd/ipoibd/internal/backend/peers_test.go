package backend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"ipoibd/hca"
)

// server is a name server. The test sets its answer, which is the same for all names.
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
	l := newPeerList([]string{"fe80::1%eth0", "10.0.0.2", "::ffff:10.0.0.1", "10.0.0.2", "a.example"}, "eth0", slog.New(slog.DiscardHandler))
	if want := addrs("10.0.0.1", "10.0.0.2", "fe80::1"); !slices.Equal(l.Addrs(), want) {
		t.Errorf("got %v, want %v", l.Addrs(), want)
	}
}

// The addresses of a name follow its answers. If a look-up fails, the last addresses stay,
// and one message is logged.
func TestPeersFollowNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		var dns server
		dns.set("10.0.0.3", "::ffff:10.0.0.2")
		l := newPeerList([]string{"10.0.0.1", "pods"}, "", slog.New(slog.NewTextHandler(&text, nil)))
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
		if got := l.notice(); !strings.HasPrefix(got, "cannot resolve peer ") {
			t.Errorf("notice %q", got)
		}
		dns.set("10.0.0.5")
		want("found again", "10.0.0.1", "10.0.0.5")
		if got := l.notice(); got != "" {
			t.Errorf("notice %q of names that resolve", got)
		}
		cancel()
		<-ended
		if n := strings.Count(text.String(), "cannot resolve peer"); n != 1 {
			t.Errorf("said %d times, want once:\n%s", n, text.String())
		}
		if !strings.Contains(text.String(), "again") {
			t.Errorf("the end was not said:\n%s", text.String())
		}
	})
}

// A new list is used at once, as far as it consists of addresses. A name that stays keeps its
// addresses, a new one gets them within a look-up, also if Run waits for a slow one, and those of a
// name that is gone are gone, even if its look-up was under way.
func TestPeersChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPeerList([]string{"10.0.0.1", "stays", "goes"}, "", slog.New(slog.DiscardHandler))
		var slow atomic.Pointer[string]
		l.resolve = func(ctx context.Context, _, name string) ([]netip.Addr, error) {
			if p := slow.Load(); p != nil && *p == name {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return addrs(map[string]string{"stays": "10.0.1.1", "goes": "10.0.1.2", "comes": "10.0.1.3"}[name]), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		want := func(when string, list ...string) {
			t.Helper()
			if got := l.Addrs(); !slices.Equal(got, addrs(list...)) {
				t.Errorf("%s: %v, want %v", when, got, list)
			}
		}
		synctest.Wait()
		want("first", "10.0.0.1", "10.0.1.1", "10.0.1.2")
		l.Set([]string{"10.0.0.2", "stays", "comes"})
		want("at once", "10.0.0.2", "10.0.1.1")
		synctest.Wait()
		want("looked up", "10.0.0.2", "10.0.1.1", "10.0.1.3")
		slow.Store(new("stays"))
		time.Sleep(refreshPeers + time.Millisecond) // a look-up of it is under way
		l.Set([]string{"goes"})
		want("at once, without addresses")
		time.Sleep(lookupLimit)
		synctest.Wait()
		want("after the slow look-up", "10.0.1.2")
		cancel()
		<-ended
	})
}

// The log claims to keep the addresses of a name only if there are some.
func TestPeerThatWasNeverResolved(t *testing.T) {
	for _, c := range []struct {
		known []netip.Addr
		want  string
	}{
		{nil, "cannot resolve peer, so it gets no multicast"},
		{addrs("10.0.0.1"), "cannot resolve peer; keeping its last known addresses"},
	} {
		var text bytes.Buffer
		l := newPeerList([]string{"pods"}, "", slog.New(slog.NewTextHandler(&text, nil)))
		l.known["pods"] = c.known
		l.resolve = func(context.Context, string, string) ([]netip.Addr, error) { return nil, errNoName }
		l.refresh(t.Context(), l.names)
		if !strings.Contains(text.String(), c.want) {
			t.Errorf("%d known addresses: %s", len(c.known), &text)
		}
	}
}

// Only addresses of single hosts are used, up to a limit, and the same ones each time.
// The others are counted and logged once.
func TestPeersOfNamesAreFilteredAndBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		answers := map[string][]netip.Addr{
			"all": addrs("224.0.0.1", "ff02::1", "255.255.255.255", "0.0.0.0", "127.0.0.1", "::1", "fe80::1", "10.0.0.255",
				"::ffff:224.0.0.1", "10.0.0.1", "::ffff:10.0.0.2", "10.0.0.1", "fd00::1"),
		}
		const answered = 6000 // for each of these names
		names := []string{"many", "more", "most", "much"}
		for _, name := range names {
			a := netip.AddrFrom4([4]byte{10, byte(len(answers)), 0, 1})
			for range answered {
				answers[name] = append(answers[name], a)
				a = a.Next()
			}
		}
		l := newPeerList(append([]string{"192.0.2.1", "all"}, names...), "eth0", slog.New(slog.NewTextHandler(&text, nil)))
		l.subnets = func() []netip.Prefix {
			return []netip.Prefix{netip.MustParsePrefix("10.0.0.7/24"), netip.MustParsePrefix("10.0.0.0/31")}
		}
		l.resolve = func(_ context.Context, _, name string) ([]netip.Addr, error) {
			answer := slices.Clone(answers[name])
			rand.Shuffle(len(answer), func(i, j int) { answer[i], answer[j] = answer[j], answer[i] })
			return answer, nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); l.Run(ctx) }()
		synctest.Wait()
		first := l.Addrs()
		want := addrs("10.0.0.1", "10.0.0.2", "fd00::1", "192.0.2.1")
		for _, name := range names {
			want = append(want, answers[name][:min(4096, 16384-len(want)+1)]...) // 192.0.2.1 is not of a name
		}
		slices.SortFunc(want, netip.Addr.Compare)
		if !slices.Equal(first, want) {
			t.Errorf("%d addresses, want %d: %v", len(first), len(want), first[:min(len(first), 10)])
		}
		const length = 5 * time.Minute
		time.Sleep(length)
		synctest.Wait()
		if !slices.Equal(l.Addrs(), first) {
			t.Error("the same answers led to other addresses")
		}
		cancel()
		<-ended
		const rounds = 1 + uint64(length/refreshPeers)
		counters := []hca.Counter{{Name: "peer_addrs_refused", Kind: hca.CountError, Value: 9 * rounds}, {Name: "peer_addrs_excess", Kind: hca.CountError, Value: (4*answered - 16384 + 3) * rounds}}
		if got := l.Counters(); !slices.Equal(got, counters) {
			t.Errorf("counters %v, want %v", got, counters)
		}
		if n := strings.Count(text.String(), "are not used"); n != 5 {
			t.Errorf("%d lines, want one for each name:\n%s", n, text.String())
		}
	})
}

// An answer that changes all the time is logged once a minute.
func TestComplaintsOfPeersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		l := newPeerList([]string{"pods"}, "eth0", slog.New(slog.NewTextHandler(&text, nil)))
		next := netip.MustParseAddr("224.0.0.1")
		l.resolve = func(context.Context, string, string) ([]netip.Addr, error) {
			next = next.Next()
			return []netip.Addr{next}, nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour-time.Second)
		defer cancel()
		l.Run(ctx)
		if n := strings.Count(text.String(), "are not used"); n != 60 {
			t.Errorf("%d lines in an hour, want 60", n)
		}
	})
}

// Run ends with its context even if the name server does not answer.
func TestPeersEndDuringLookup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPeerList([]string{"pods"}, "", slog.New(slog.DiscardHandler))
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
