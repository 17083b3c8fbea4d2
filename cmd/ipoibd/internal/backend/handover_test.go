package backend

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca/soft/udp"
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

// An HCA whose queue pairs end with their process continues nothing, and closes what it is given.
func TestRealHCAInheritsNothing(t *testing.T) {
	s := NewSlot(&realHCA{}, false, slog.New(slog.DiscardHandler))
	if err := s.Pause(); err != nil {
		t.Error(err)
	}
	s.Resume()
	if h, fds, err := s.HandOver(); h.Sockets != nil || len(fds) > 0 || err != nil {
		t.Errorf("%+v, %v, %v", h, fds, err)
	}
	if err := s.Inherit(Handed{}, nil, nil); err != nil {
		t.Error(err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Inherit(Handed{Sockets: &udp.Handed{}}, []int{fd}, nil); err == nil {
		t.Error("a real HCA continues sockets")
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err == nil {
		t.Error("the descriptor is still open")
	}
}
