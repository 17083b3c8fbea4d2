package transporttest

import (
	"errors"
	"net/netip"
	"testing"

	"ipoibd/hca"
)

// receivesGroup sends "group" to the group, then "marker" to b, and reports whether b
// received the first.
func receivesGroup(t *testing.T, a, b Host, group netip.Addr) bool {
	t.Helper()
	a.sendAll(t, a.packet(group, "group"), a.packet(b.addr(group), "marker"))
	first := b.recvN(t, 1)[0]
	if string(first.Data) == "marker" {
		return false
	}
	if string(first.Data) != "group" || first.Dst != group || first.Src != a.addr(group) {
		t.Errorf("received %q from %v to %v, want the datagram to the group", first.Data, first.Src, first.Dst)
	}
	if marker := b.recvN(t, 1)[0]; string(marker.Data) != "marker" {
		t.Errorf("received %q, want the marker: the datagram to the group arrived twice", marker.Data)
	}
	return true
}

// testMulticast: only members receive datagrams to a group, and never the sender itself.
func testMulticast(t *testing.T, a, b Host) {
	for _, group := range []netip.Addr{group4, group6} {
		if receivesGroup(t, a, b, group) {
			t.Errorf("received a datagram to %v without Join", group)
		}
		join(t, a, group)
		join(t, b, group)
		if !receivesGroup(t, a, b, group) {
			t.Errorf("a member of %v did not receive a datagram", group)
		}
		b.sendAll(t, b.packet(a.addr(group), "marker"))
		if got := a.recvN(t, 1)[0]; string(got.Data) != "marker" {
			t.Errorf("the sender received its own multicast to %v: %q", group, got.Data)
		}
		leave(t, b, group)
		if receivesGroup(t, a, b, group) {
			t.Errorf("received a datagram to %v after Leave", group)
		}
	}
}

func testMembershipCounts(t *testing.T, a, b Host) {
	for _, group := range []netip.Addr{group4, group6} {
		join(t, b, group)
		join(t, b, group)
		leave(t, b, group)
		if !receivesGroup(t, a, b, group) {
			t.Errorf("%v: no datagram received after one Leave for two Joins", group)
		}
		leave(t, b, group)
		if err := b.Leave(group); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("third Leave of %v: %v, want hca.ErrInvalid", group, err)
		}
	}
}

// testManyGroups joins more groups than Linux permits for one socket (20).
func testManyGroups(t *testing.T, a, b Host) {
	const n = 100
	for i := range n {
		join(t, b, netip.AddrFrom4([4]byte{239, 192, 7, byte(i)}))
	}
	for _, i := range []byte{0, 20, 50, n - 1} {
		if group := netip.AddrFrom4([4]byte{239, 192, 7, i}); !receivesGroup(t, a, b, group) {
			t.Errorf("joined %[2]d groups, but received no datagram to %[1]v", group, n)
		}
	}
	for i := range n {
		leave(t, b, netip.AddrFrom4([4]byte{239, 192, 7, byte(i)}))
	}
}

func testBadGroups(t *testing.T, a, b Host) {
	for _, group := range []netip.Addr{{}, b.IPv4, b.IPv6, netip.AddrFrom16(group4.As16())} {
		if err := a.Join(group); !errors.Is(err, hca.ErrInvalid) {
			t.Errorf("Join(%v): %v, want hca.ErrInvalid", group, err)
		}
	}
}

func join(t *testing.T, h Host, group netip.Addr) {
	t.Helper()
	if err := h.Join(group); err != nil {
		t.Fatalf("Join: %v", err)
	}
}

func leave(t *testing.T, h Host, group netip.Addr) {
	t.Helper()
	if err := h.Leave(group); err != nil {
		t.Fatalf("Leave: %v", err)
	}
}
