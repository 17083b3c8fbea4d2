package ipoib

import (
	"net"
	"testing"

	"pgregory.net/rapid"

	"ipoibd/hca"
)

func TestGroups(t *testing.T) {
	for _, c := range []struct{ group, mgid, mac string }{
		{"224.0.0.1", "ff12401bffff00000000000000000001", "01:00:5e:00:00:01"},
		{"239.255.255.255", "ff12401bffff0000000000000fffffff", "01:00:5e:7f:ff:ff"},
		{"232.129.2.3", "ff12401bffff00000000000008810203", "01:00:5e:01:02:03"},
		{"255.255.255.255", "ff12401bffff000000000000ffffffff", "ff:ff:ff:ff:ff:ff"},
		{"ff02::1", "ff12601bffff00000000000000000001", "33:33:00:00:00:01"},
		{"ff02::1:ff12:3456", "ff12601bffff000000000001ff123456", "33:33:ff:12:34:56"},
		{"ff0e:1:2:3:4:5:6:7", "ff12601bffff00030004000500060007", "33:33:00:06:00:07"},
	} {
		if got := GroupMGID(ScopeLinkLocal, hca.PKeyDefault, ip(c.group)); got != hca.GID(unhex(c.mgid)) {
			t.Errorf("%s: got MGID %x, want %s", c.group, got[:], c.mgid)
		}
		if got := GroupMAC(ip(c.group)); got.String() != c.mac {
			t.Errorf("%s: got MAC %v, want %s", c.group, got, c.mac)
		}
	}
}

func TestBroadcastMGIDIsThatOfLimitedBroadcast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scope, pkey := rapid.Byte().Draw(t, "scope"), hca.PKey(rapid.Uint16().Draw(t, "pkey"))
		got := BroadcastMGID(scope, pkey)
		if got != GroupMGID(scope, pkey, ip("255.255.255.255")) || !got.IsMulticast() {
			t.Fatalf("got %v, want the MGID of 255.255.255.255", got)
		}
	})
}

// TestGroupMGIDIsUnique checks that two different IPv4 groups never share an MGID, nor
// two IPv6 groups with equal flags and scope whose low 80 bits differ.
func TestGroupMGIDIsUnique(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := rapid.Uint32Max(1<<28-1).Draw(t, "a")
		b := rapid.Uint32Max(1<<28-1).Draw(t, "b")
		ipOf := func(n uint32) string {
			return net.IPv4(0xe0|byte(n>>24), byte(n>>16), byte(n>>8), byte(n)).String()
		}
		same := GroupMGID(2, 1, ip(ipOf(a))) == GroupMGID(2, 1, ip(ipOf(b)))
		if same != (a == b) {
			t.Fatalf("%s and %s: same MGID %t", ipOf(a), ipOf(b), same)
		}
	})
}

func TestSolicitedNode(t *testing.T) {
	got := SolicitedNode(ip("2001:db8:1:2:3:4:5612:3456"))
	if got != ip("ff02::1:ff12:3456") {
		t.Errorf("got %v, want ff02::1:ff12:3456", got)
	}
	if again := SolicitedNode(got); again != got {
		t.Errorf("the group's own group is %v", again)
	}
}
