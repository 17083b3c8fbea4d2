package verbs

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"ipoibd/hca"
)

// testGroups are groups without other members.
var testGroups = []netip.Addr{
	netip.MustParseAddr("239.255.201.47"), netip.MustParseAddr("ff15:401b:ffff::4791"),
}

// isMember reports whether the kernel's lists contain a group. They show IPv4 groups
// as numbers in the machine's byte order.
func isMember(t *testing.T, group netip.Addr) bool {
	t.Helper()
	file, name := "/proc/self/net/igmp6", hex.EncodeToString(group.AsSlice())
	if group.Is4() {
		file, name = "/proc/self/net/igmp", fmt.Sprintf("%08X", binary.NativeEndian.Uint32(group.AsSlice()))
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(text), name)
}

func loopback(t *testing.T) int {
	t.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	return lo.Index
}

// Two queue pairs may be in one group; when the last of them detaches, the netdev
// leaves the group.
func TestMembership(t *testing.T) {
	for _, group := range testGroups {
		var members []*membership
		for range 2 {
			m, err := joinGroup(group, loopback(t))
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, m)
		}
		members[0].leave()
		if !isMember(t, group) {
			t.Errorf("left %v when the first queue pair detached", group)
		}
		if members[1].leave(); isMember(t, group) {
			t.Errorf("did not leave %v when the last queue pair detached", group)
		}
	}
}

// Joins more groups than one socket may join (net.ipv4.igmp_max_memberships is 20).
func TestMembershipMany(t *testing.T) {
	group := netip.MustParseAddr("239.255.202.1")
	for range 50 {
		m, err := joinGroup(group, loopback(t))
		if err != nil {
			t.Fatalf("join %v: %v", group, err)
		}
		defer m.leave()
		group = group.Next()
	}
}

// Joining on a missing interface is not an error of the device.
func TestMembershipRefused(t *testing.T) {
	for _, group := range testGroups {
		_, err := joinGroup(group, 1<<30)
		if !errors.Is(err, hca.ErrInvalid) || !errors.Is(err, unix.ENODEV) || errors.Is(err, hca.ErrIO) {
			t.Errorf("join %v: %v, want ErrInvalid and ENODEV", group, err)
		}
	}
	var none *membership
	none.leave()
}
