package soft

import (
	"net/netip"
	"slices"
	"testing"

	"ipoibd/hca"
	"ipoibd/hca/soft/transport"
)

var (
	testV4   = netip.MustParseAddr("10.0.0.1")
	testV4b  = netip.MustParseAddr("10.0.0.2")
	testV6   = netip.MustParseAddr("fd00::1")
	testLink = netip.MustParseAddr("fe80::1%eth0")
)

func upState(mtu int, addrs ...netip.Addr) *transport.State {
	return &transport.State{Present: true, Up: true, MTU: mtu, Addrs: addrs}
}

// The port's MTU is the underlay's without 52 bytes of overhead over IPv4, or 72 over
// IPv6; the payload is padded to four bytes.
func TestMTU(t *testing.T) {
	for _, c := range []struct {
		mtu, v4, v6 int
		active      hca.MTU
		std4, std6  int
	}{
		{9000, 4096, 4096, 4096, 4096, 4096},
		{4168, 4096, 4096, 4096, 4096, 4096},
		{4167, 4096, 4092, 4096, 4096, 2048},
		{4148, 4096, 4076, 4096, 4096, 2048},
		{4147, 4092, 4072, 4096, 2048, 2048},
		{1500, 1448, 1428, 2048, 1024, 1024},
		{1499, 1444, 1424, 2048, 1024, 1024},
		{1280, 1228, 1208, 2048, 1024, 1024},
		{1076, 1024, 1004, 1024, 1024, 512},
		{308, 256, 236, 256, 256, 0},
		{60, 8, 0, 256, 0, 0},
		{0, 0, 0, 256, 0, 0},
	} {
		var loose, strict port
		loose.become(upState(c.mtu, testV4, testV6), false)
		strict.become(upState(c.mtu, testV4, testV6), true)
		got := []int{
			loose.gids[0].MaxPayload, loose.gids[1].MaxPayload, int(loose.active),
			strict.gids[0].MaxPayload, strict.gids[1].MaxPayload,
		}
		if want := []int{c.v4, c.v6, int(c.active), c.std4, c.std6}; !slices.Equal(got, want) {
			t.Errorf("underlay of %d: %v, want %v", c.mtu, got, want)
		}
		if strict.active < hca.MTU(c.std4) || !strict.active.Valid() {
			t.Errorf("underlay of %d: standard MTU %d", c.mtu, strict.active)
		}
	}
}

// A GID keeps its index as long as its address exists, and new GIDs fill free indices.
func TestGIDsKeepTheirPlaces(t *testing.T) {
	var p port
	table := func() (out []string) {
		for _, g := range p.attr(hca.GUID{}, nil).GIDs {
			if g.Type != hca.GIDTypeRoCEv2 || g.GID.IsZero() != (g.MaxPayload == 0) {
				t.Errorf("invalid entry %+v", g)
			}
			out = append(out, g.GID.Addr().String())
		}
		return out
	}
	for _, step := range []struct {
		addrs  []netip.Addr
		want   []string
		change change
	}{
		{[]netip.Addr{testLink, testV4}, []string{"fe80::1", "10.0.0.1"}, changedState | changedGIDs | changedMTU},
		{[]netip.Addr{testV4, testLink}, []string{"fe80::1", "10.0.0.1"}, 0},
		{[]netip.Addr{testV4}, []string{"::", "10.0.0.1"}, changedGIDs},
		{[]netip.Addr{testV4, testV4b, testV6}, []string{"10.0.0.2", "10.0.0.1", "fd00::1"}, changedGIDs},
		{nil, []string{"::", "::", "::"}, changedGIDs | changedMTU},
		{[]netip.Addr{testV6}, []string{"fd00::1", "::", "::"}, changedGIDs | changedMTU},
	} {
		if got := p.become(upState(1500, step.addrs...), false); got != step.change {
			t.Errorf("%v: change %b, want %b", step.addrs, got, step.change)
		}
		if got := table(); !slices.Equal(got, step.want) {
			t.Errorf("%v: table %v, want %v", step.addrs, got, step.want)
		}
	}
}

// A snapshot that was returned earlier does not change.
func TestGIDSnapshotsStay(t *testing.T) {
	var p port
	p.become(upState(1500, testV4), false)
	before := p.engineGIDs()
	p.become(upState(9000, testV6), false)
	if before[0].Addr != testV4 || before[0].MaxPayload != 1448 {
		t.Errorf("the snapshot changed to %+v", before)
	}
}

func TestPortChanges(t *testing.T) {
	var p port
	p.become(upState(1500, testV4), false)
	down, gone := *upState(1500, testV4), *upState(1500, testV4)
	down.Up, gone.Present = false, false
	for _, step := range []struct {
		s    *transport.State
		want change
	}{
		{&down, changedState},
		{&down, 0},
		{upState(1500, testV4), changedState},
		{upState(1501, testV4), 0}, // no change after rounding
		{upState(1504, testV4), changedMTU},
		{upState(9000, testV4), changedMTU},
		{upState(9001, testV4), 0},
		{&gone, changedState | changedMTU},
	} {
		if got := p.become(step.s, false); got != step.want {
			t.Errorf("%+v: change %b, want %b", step.s, got, step.want)
		}
	}
}

func TestGUID(t *testing.T) {
	if got := GUIDOf([6]byte{0x52, 0x54, 0, 1, 2, 3}).String(); got != "5054:00ff:fe01:0203" {
		t.Errorf("GUID %s, want 5054:00ff:fe01:0203", got)
	}
}
