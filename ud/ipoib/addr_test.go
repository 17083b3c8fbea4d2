package ipoib

import (
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

func TestNewAddrExactBytes(t *testing.T) {
	want := Addr(unhex("00 12ab49 fe80000000000000 020000fffe00000b"))
	if addrB != want {
		t.Errorf("got %v, want %v", addrB, want)
	}
}

func TestAddrRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		qpn := hca.QPN(rapid.Uint32Max(uint32(hca.QPNMask)).Draw(t, "qpn"))
		gid := hca.GID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "gid"))
		a := NewAddr(qpn, gid)
		if a[0] != 0 || a.QPN() != qpn || a.GID() != gid {
			t.Fatalf("%v: flags %d, QPN %v, GID %v", a, a[0], a.QPN(), a.GID())
		}
	})
}

func TestNewAddrCutsQPN(t *testing.T) {
	if a := NewAddr(0x80000048, gidA); a != addrA {
		t.Errorf("got %v, want %v", a, addrA)
	}
}

func TestAddressesAsText(t *testing.T) {
	got, err := json.Marshal(map[string]any{"addr": addrB, "mac": macB})
	want := `{"addr":"00:12:ab:49:fe:80:00:00:00:00:00:00:02:00:00:ff:fe:00:00:0b","mac":"02:00:00:00:00:0b"}`
	if err != nil || string(got) != want {
		t.Errorf("got %s, %v; want %s", got, err, want)
	}
}

func TestMACKinds(t *testing.T) {
	for _, c := range []struct {
		mac                        MAC
		multicast, broadcast, zero bool
	}{
		{macA, false, false, false},
		{MAC{}, false, false, true},
		{Broadcast, true, true, false},
		{MAC{0x33, 0x33, 0, 0, 0, 1}, true, false, false},
		{MAC{0x01, 0, 0x5e, 0, 0, 1}, true, false, false},
		{MAC{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}, false, false, false},
	} {
		got := [3]bool{c.mac.IsMulticast(), c.mac.IsBroadcast(), c.mac.IsZero()}
		if got != [3]bool{c.multicast, c.broadcast, c.zero} {
			t.Errorf("%v: multicast, broadcast, zero = %v", c.mac, got)
		}
	}
}

func TestMACText(t *testing.T) {
	want := MAC{2, 0xab, 0, 1, 2, 0xff}
	var got MAC
	text, err := want.MarshalText()
	if err == nil {
		err = got.UnmarshalText(text)
	}
	if err != nil || got != want {
		t.Errorf("%s: %v, %v", text, got, err)
	}
	for _, bad := range []string{"", "02:ab:00:01:02", "02:ab:00:01:02:ff:00", "02-ab-00-01-02-ff", "2:ab:0:1:2:ff", "02:ab:00:01:02:fg", "02:ab:00:01:02:ff "} {
		if err := got.UnmarshalText([]byte(bad)); err == nil || got != want {
			t.Errorf("%q: %v, %v", bad, got, err)
		}
	}
}
