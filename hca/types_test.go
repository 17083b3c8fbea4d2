package hca_test

import (
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

// gid returns the GID of an address.
func gid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }

var gids = []hca.GID{
	{}, gid("192.0.2.1"), gid("fe80::5054:ff:fe09:2"), gid("ff12:401b:ffff::ffff:ffff"), gid("239.1.2.3"),
}

func TestGIDText(t *testing.T) {
	for _, tt := range []struct{ addr, want string }{
		{"::", "::"},
		{"192.0.2.1", "192.0.2.1"},
		{"::ffff:192.0.2.1", "192.0.2.1"},
		{"::192.0.2.1", "::c000:201"},
		{"fe80::5054:ff:fe09:2", "fe80::5054:ff:fe09:2"},
		{"ff12:401b:ffff::ffff:ffff", "ff12:401b:ffff::ffff:ffff"},
	} {
		if got := gid(tt.addr).String(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.addr, got, tt.want)
		}
	}
}

func TestGIDFromAddr(t *testing.T) {
	want := hca.GID{10: 0xff, 11: 0xff, 12: 192, 13: 0, 14: 2, 15: 1}
	if got := gid("192.0.2.1"); got != want {
		t.Errorf("GID of 192.0.2.1: % x, want % x", got[:], want)
	}
	if got := gid("fe80::1%eth0"); got != (hca.GID{0: 0xfe, 1: 0x80, 15: 1}) {
		t.Errorf("GID of fe80::1%%eth0: % x, want it without the zone", got[:])
	}
}

func TestGIDAddrRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.SampledFrom([]int{4, 16}).Draw(t, "family")
		a, _ := netip.AddrFromSlice(rapid.SliceOfN(rapid.Byte(), n, n).Draw(t, "address"))
		if got := hca.GIDFromAddr(a).Addr(); got != a.Unmap() {
			t.Fatalf("%v comes back as %v", a, got)
		}
	})
}

func TestGIDKinds(t *testing.T) {
	for _, tt := range []struct {
		addr            string
		zero, multicast bool
	}{
		{"::", true, false},
		{"::1", false, false},
		{"fe80::1", false, false},
		{"ff12:401b:ffff::ffff:ffff", false, true},
		{"ff02::1", false, true},
		{"192.0.2.1", false, false},
		{"223.255.255.255", false, false},
		{"224.0.0.0", false, true},
		{"239.255.255.255", false, true},
		{"240.0.0.0", false, false},
	} {
		if g := gid(tt.addr); g.IsZero() != tt.zero || g.IsMulticast() != tt.multicast {
			t.Errorf("%s: zero %v, multicast %v, want %v, %v", tt.addr, g.IsZero(), g.IsMulticast(), tt.zero, tt.multicast)
		}
	}
}

func TestGUIDText(t *testing.T) {
	g := hca.GUID{0x02, 0x11, 0x22, 0xff, 0xfe, 0x33, 0x44, 0x05}
	if got := g.String(); got != "0211:22ff:fe33:4405" {
		t.Error(got)
	}
}

func TestQPNText(t *testing.T) {
	for qpn, want := range map[hca.QPN]string{
		0x11: "0x000011", hca.QPNGSI: "0x000001", hca.QPNMulticast: "0xffffff",
	} {
		if got := qpn.String(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// IBA 10.9.3: keys match by their low 15 bits, zero never matches, and neither do two
// limited members.
func TestPKeyMatch(t *testing.T) {
	for _, tt := range []struct {
		table, packet hca.PKey
		want          bool
	}{
		{0xffff, 0xffff, true},
		{0xffff, 0x7fff, true},
		{0x7fff, 0xffff, true},
		{0x7fff, 0x7fff, false},
		{0x8001, 0x8001, true},
		{0x8001, 0x0001, true},
		{0x8001, 0x8002, false},
		{0x8000, 0x8000, false},
		{0x0000, 0x0000, false},
		{0x8000, 0x0000, false},
		{0xffff, 0xfffe, false},
	} {
		if got := tt.table.Match(tt.packet); got != tt.want {
			t.Errorf("%#04x and %#04x: %v, want %v", tt.table, tt.packet, got, tt.want)
		}
	}
}

func TestPKeyMatchIsSymmetric(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := hca.PKey(rapid.Uint16().Draw(t, "p"))
		q := p ^ rapid.SampledFrom([]hca.PKey{0, 1, 0x8000, 0x8001}).Draw(t, "difference")
		if p.Match(q) != q.Match(p) {
			t.Fatalf("Match of %#04x and %#04x is not symmetric", p, q)
		}
	})
}

func TestMTUFor(t *testing.T) {
	for _, tt := range []struct {
		n    int
		want hca.MTU
	}{
		{-1, 0},
		{0, 0},
		{255, 0},
		{256, 256},
		{511, 256},
		{512, 512},
		{1023, 512},
		{1024, 1024},
		{1448, 1024},
		{2047, 1024},
		{2048, 2048},
		{4095, 2048},
		{4096, 4096},
		{1 << 30, 4096},
	} {
		if got := hca.MTUFor(tt.n); got != tt.want {
			t.Errorf("%d bytes: %d, want %d", tt.n, got, tt.want)
		}
	}
}

func TestMTUValid(t *testing.T) {
	valid := map[hca.MTU]bool{256: true, 512: true, 1024: true, 2048: true, 4096: true}
	for m := hca.MTU(-1); m <= 8192; m++ {
		if m.Valid() != valid[m] {
			t.Errorf("MTU %d: %v is valid, want %v", m, m.Valid(), valid[m])
		}
	}
}

// Path bits are the lowest bits of a LID (IBA 4.1.3).
func TestLID(t *testing.T) {
	for _, tt := range []struct {
		lid  hca.LID
		lmc  uint8
		base hca.LID
		ok   bool
	}{
		{0, 0, 0, false},
		{1, 0, 1, true},
		{1, 1, 0, true},
		{0x1237, 0, 0x1237, true},
		{0x1237, 2, 0x1234, true},
		{0x12ff, 7, 0x1280, true},
		{0xbfff, 7, 0xbf80, true},
		{0xc000, 0, 0xc000, false},
		{0xffff, 0, 0xffff, false},
	} {
		if base, ok := tt.lid.Base(tt.lmc), tt.lid.IsUnicast(); base != tt.base || ok != tt.ok {
			t.Errorf("LID %v with %d path bits: base %v, unicast %t, want %v, %t", tt.lid, tt.lmc, base, ok, tt.base, tt.ok)
		}
	}
	if got := hca.LID(0x2a).String(); got != "0x002a" {
		t.Errorf("text %s, want 0x002a", got)
	}
}

// With a LID, the GID identifies nothing; without one, it does.
func TestUDSourceKey(t *testing.T) {
	a, b := gid("192.0.2.1"), gid("192.0.2.2")
	for _, tt := range []struct {
		name      string
		s, other  hca.UDSource
		key, port bool // equal
	}{
		{"RoCE", hca.UDSource{GID: a, QPN: 5}, hca.UDSource{GID: a, QPN: 5}, true, true},
		{"RoCE, another queue pair", hca.UDSource{GID: a, QPN: 5}, hca.UDSource{GID: a, QPN: 6}, false, true},
		{"RoCE, another GID", hca.UDSource{GID: a, QPN: 5}, hca.UDSource{GID: b, QPN: 5}, false, false},
		{"InfiniBand", hca.UDSource{LID: 7, QPN: 5}, hca.UDSource{LID: 7, QPN: 5}, true, true},
		{"InfiniBand, once with a GRH", hca.UDSource{LID: 7, QPN: 5}, hca.UDSource{GID: a, LID: 7, QPN: 5}, true, true},
		{"InfiniBand, two GIDs", hca.UDSource{GID: b, LID: 7, QPN: 5}, hca.UDSource{GID: a, LID: 7, QPN: 5}, true, true},
		{"InfiniBand, another queue pair", hca.UDSource{LID: 7, QPN: 5}, hca.UDSource{LID: 7, QPN: 6}, false, true},
		{"InfiniBand, another LID", hca.UDSource{LID: 7, QPN: 5}, hca.UDSource{LID: 8, QPN: 5}, false, false},
		{"another LID, one GID", hca.UDSource{GID: a, LID: 7, QPN: 5}, hca.UDSource{GID: a, LID: 8, QPN: 5}, false, false},
		{"InfiniBand and RoCE", hca.UDSource{GID: a, LID: 7, QPN: 5}, hca.UDSource{GID: a, QPN: 5}, false, false},
	} {
		key, port := tt.s.Key() == tt.other.Key(), tt.s.Port() == tt.other.Port()
		if key != tt.key || port != tt.port {
			t.Errorf("%s: equal key %t, port %t, want %t, %t", tt.name, key, port, tt.key, tt.port)
		}
	}
}
