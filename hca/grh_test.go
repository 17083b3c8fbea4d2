package hca_test

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"ipoibd/hca"
)

// GRH areas of both layouts.
const (
	zeros    = "00000000 00000000 00000000 00000000 00000000"
	areaIPv4 = zeros + "45 00 0074 14ba 4000 40 11 11ab 0a090002 0a090001" // captured
	areaLoop = zeros + "45 00 0044 f518 4000 40 11 5a5a c0000201 c0000201" // rxe, to its own port
	areaIPv6 = "60000000 0060 11 40 20010db8000000000000000000000001 ff12401bffff00000000000000000001"
	areaIB   = "6abcdef0 0800 1b ff fe800000000000000002c90300000001 fe800000000000000002c90300000002"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestParseGRH(t *testing.T) {
	for _, tt := range []struct{ name, area, sgid, dgid string }{
		{"IPv4", areaIPv4, "10.9.0.2", "10.9.0.1"},
		{"IPv4 with any checksum", areaLoop, "192.0.2.1", "192.0.2.1"},
		{"IPv4 behind rubbish", "6" + areaIPv4[1:], "10.9.0.2", "10.9.0.1"},
		{"IPv6", areaIPv6, "2001:db8::1", "ff12:401b:ffff::1"},
		{"InfiniBand", areaIB, "fe80::2:c903:0:1", "fe80::2:c903:0:2"},
		{"longer", areaIPv4 + "ffff", "10.9.0.2", "10.9.0.1"},
	} {
		sgid, dgid, err := hca.ParseGRH(unhex(t, tt.area), hca.NetworkUnknown)
		if err != nil || sgid != gid(tt.sgid) || dgid != gid(tt.dgid) {
			t.Errorf("%s: %v -> %v, %v, want %s -> %s", tt.name, sgid, dgid, err, tt.sgid, tt.dgid)
		}
	}
}

// An IPv4 header with a wrong checksum cannot be distinguished from the addresses of an
// IPv6 header, so the area is parsed as IPv6.
func TestParseGRHWrongSumIsIPv6(t *testing.T) {
	sgid, _, err := hca.ParseGRH(unhex(t, "6"+areaLoop[1:]), hca.NetworkUnknown)
	if want := (hca.GID{12: 0x45, 15: 0x44}); err != nil || sgid != want {
		t.Errorf("from %v, want %v (%v)", sgid, want, err)
	}
}

// twoFaced returns a GRH area with an IPv6 header whose addresses look like an IPv4
// header with a valid checksum, at the offset where the area would have one.
func twoFaced(t *testing.T) (area []byte, src, dst hca.GID) {
	t.Helper()
	area = unhex(t, areaIPv6)
	copy(area[20:], unhex(t, areaIPv4)[20:])
	return area, hca.GID(area[8:24]), hca.GID(area[24:40])
}

// When the backend knows the family of a header, the header is parsed as that family,
// whatever it looks like. Only otherwise can IPv6 addresses pass for an IPv4 header.
func TestParseGRHOfKnownNetwork(t *testing.T) {
	area, src, dst := twoFaced(t)
	for _, tt := range []struct {
		name       string
		area       []byte
		network    hca.NetworkType
		sgid, dgid hca.GID
		err        error
	}{
		{"IPv6 that looks like IPv4", area, hca.NetworkIPv6, src, dst, nil},
		{"the same, unknown", area, hca.NetworkUnknown, gid("10.9.0.2"), gid("10.9.0.1"), nil},
		{"IPv4", unhex(t, areaIPv4), hca.NetworkIPv4, gid("10.9.0.2"), gid("10.9.0.1"), nil},
		{"IPv4 after arbitrary bytes, with any checksum", unhex(t, "6"+areaLoop[1:]), hca.NetworkIPv4, gid("192.0.2.1"), gid("192.0.2.1"), nil},
		{"IPv6", unhex(t, areaIPv6), hca.NetworkIPv6, gid("2001:db8::1"), gid("ff12:401b:ffff::1"), nil},
		{"IPv4 parsed as IPv6", unhex(t, areaIPv4), hca.NetworkIPv6, hca.GID{}, hca.GID{}, hca.ErrGRH},
		{"IPv6 parsed as IPv4", unhex(t, areaIPv6), hca.NetworkIPv4, hca.GID{}, hca.GID{}, hca.ErrGRH},
	} {
		sgid, dgid, err := hca.ParseGRH(tt.area, tt.network)
		if !errors.Is(err, tt.err) || sgid != tt.sgid || dgid != tt.dgid {
			t.Errorf("%s: %v -> %v, %v, want %v -> %v, %v", tt.name, sgid, dgid, err, tt.sgid, tt.dgid, tt.err)
		}
	}
}

func TestParseGRHRefuses(t *testing.T) {
	for name, change := range map[string]func(area []byte){
		"zero":         func(area []byte) { clear(area) },
		"version 5":    func(area []byte) { area[20] = 0x55 },
		"with options": func(area []byte) { area[20] = 0x46 },
		"TCP":          func(area []byte) { area[29] = 6 },
	} {
		area := unhex(t, areaIPv4)
		change(area)
		sgid, dgid, err := hca.ParseGRH(area, hca.NetworkUnknown)
		if !errors.Is(err, hca.ErrGRH) || !errors.Is(err, hca.ErrInvalid) || !sgid.IsZero() || !dgid.IsZero() {
			t.Errorf("%s: %v -> %v, %v, want ErrGRH and no GIDs", name, sgid, dgid, err)
		}
	}
}

func TestParseGRHTruncated(t *testing.T) {
	for _, area := range []string{areaIPv4, areaIPv6} {
		for n := range hca.GRHLen {
			if _, _, err := hca.ParseGRH(unhex(t, area)[:n:n], hca.NetworkUnknown); !errors.Is(err, hca.ErrGRH) {
				t.Errorf("%d bytes: %v, want ErrGRH", n, err)
			}
		}
	}
}

func TestParseGRHDoesNotAllocate(t *testing.T) {
	v4, v6, bad := unhex(t, areaIPv4), unhex(t, areaIPv6), make([]byte, hca.GRHLen)
	if n := testing.AllocsPerRun(100, func() {
		_, _, _ = hca.ParseGRH(v4, hca.NetworkUnknown)
		_, _, _ = hca.ParseGRH(v6, hca.NetworkUnknown)
		_, _, _ = hca.ParseGRH(bad, hca.NetworkUnknown)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func TestIPv4Checksum(t *testing.T) {
	header := unhex(t, areaIPv4)[20:]
	if got := hca.IPv4Checksum(header); got != 0 {
		t.Errorf("checksum over a correct header: %#04x, want 0", got)
	}
	header[10], header[11] = 0, 0
	if got := hca.IPv4Checksum(header); got != 0x11ab {
		t.Errorf("%#04x, want 0x11ab", got)
	}
	// The carry of the first fold overflows again.
	if got := hca.IPv4Checksum(unhex(t, "ffff 0001 ffff ffff")); got != 0xfffe {
		t.Errorf("%#04x, want 0xfffe", got)
	}
}

// FuzzParseGRH checks that the returned GIDs are those at the offsets of one of the
// layouts.
func FuzzParseGRH(f *testing.F) {
	for _, area := range []string{areaIPv4, areaIPv6, areaIB, zeros + zeros, ""} {
		f.Add(unhex(f, area))
	}
	f.Fuzz(func(t *testing.T, area []byte) {
		for _, network := range []hca.NetworkType{hca.NetworkUnknown, hca.NetworkIPv4, hca.NetworkIPv6} {
			sgid, dgid, err := hca.ParseGRH(area, network)
			switch {
			case err != nil:
				if !sgid.IsZero() || !dgid.IsZero() {
					t.Fatalf("the error %v comes with the GIDs %v -> %v", err, sgid, dgid)
				}
			case network != hca.NetworkIPv6 && sgid.Addr().Is4() && dgid.Addr().Is4() && area[20] == 0x45:
				if string(sgid[12:])+string(dgid[12:]) != string(area[32:40]) {
					t.Fatalf("area % x parses as IPv4 %v -> %v", area, sgid, dgid)
				}
			case network == hca.NetworkIPv4 || area[0]>>4 != 6 || string(sgid[:])+string(dgid[:]) != string(area[8:40]):
				t.Fatalf("area % x parses as IPv6 %v -> %v", area, sgid, dgid)
			}
		}
	})
}
