package backend

import (
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/link/kernel/capsule"
	"ipoibd/link/kernel/capsule/capsuletest"
)

// The addresses of names that another process has looked up are used at once, but only of names that are
// configured.
func TestNamesAreRemembered(t *testing.T) {
	addr := netip.MustParseAddr("192.0.2.7")
	l := newPeerList([]string{"peer.example", "192.0.2.8"}, "eth0", slog.New(slog.DiscardHandler))
	l.remember(map[string][]netip.Addr{"peer.example": {addr}, "other.example": {netip.MustParseAddr("192.0.2.9")}, literals: {}})
	if got := l.Addrs(); !slices.Equal(got, []netip.Addr{addr, netip.MustParseAddr("192.0.2.8")}) {
		t.Errorf("addresses %v", got)
	}
	l.remember(map[string][]netip.Addr{"peer.example": {{}}})
	if names := l.lookedUp(); len(names) != 1 || !slices.Equal(names["peer.example"], []netip.Addr{addr}) {
		t.Errorf("names %v", names)
	}
}

// An HCA whose queue pairs end with their process takes no sockets out of a capsule.
func TestRealHCAInheritsNothing(t *testing.T) {
	s := NewSlot(&realHCA{}, false, slog.New(slog.DiscardHandler))
	if err := s.Pause(); err != nil {
		t.Error(err)
	}
	s.Resume()
	w := capsule.NewWriter()
	if err := s.Export(w); err != nil {
		t.Error(err)
	}
	if parts, fds, err := w.Contents(); err != nil || len(parts) > 0 || len(fds) > 0 {
		t.Errorf("%v, %v, %v", parts, fds, err)
	}
	pipe, _, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	w.Put("sockets", nil, pipe)
	parts, fds, err := w.Contents()
	if err != nil {
		t.Fatal(err)
	}
	r, err := capsule.NewReader(parts, fds)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Import(r, nil); err != nil {
		t.Error(err)
	}
	if fds, err := r.Take("sockets", new(any)); err != nil || len(fds) != 1 {
		t.Errorf("the sockets are not left in the capsule: %v, %v", fds, err)
	} else {
		_ = unix.Close(fds[0])
	}
}

// The format of what is handed over outlives versions.
func TestFormat(t *testing.T) {
	capsuletest.Check(t, "slot", handedSlot{})
	capsuletest.Check(t, "peer_names", map[string][]netip.Addr{})
}
