//go:build vm && cgo && linux

package verbs_test

import (
	"net/netip"
	"os"
	"path"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"ipoibd/hca"
	"ipoibd/hca/hcatest"
	"ipoibd/hca/verbs"
)

// The two devices of these tests: they must reach each other, and nobody else
// uses them.
const (
	envA = "IPOIBD_VERBS_A"
	envB = "IPOIBD_VERBS_B"
)

// underlay is what the suite runs over.
type underlay struct {
	name  string
	v4    bool
	group hca.GID
}

func gid(s string) hca.GID { return hca.GIDFromAddr(netip.MustParseAddr(s)) }

var underlays = []underlay{
	{"IPv6", false, gid("ff12:401b:ffff::ffff:ffff")},
	{"IPv4", true, gid("239.1.2.3")},
}

func TestConformance(t *testing.T) {
	for _, u := range underlays {
		t.Run(u.name, func(t *testing.T) {
			hcatest.Run(t, hcatest.Harness{Open: u.open, Features: features(t, u.group)})
		})
	}
}

// features are those of rxe, as it was seen on Linux 6.1 and 6.12.
func features(t *testing.T, group hca.GID) hcatest.Features {
	old := strings.HasPrefix(kernel(t), "6.1.")
	return hcatest.Features{
		MGID: group, SendErrorFlushes: !old, ShortRecvIsErr: old, OwnGroupLoops: true, ChecksProtection: true,
	}
}

func kernel(t testing.TB) string {
	t.Helper()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		t.Fatal(err)
	}
	return unix.ByteSliceToString(name.Release[:])
}

func (u underlay) open(t *testing.T) (a, b hcatest.Host) {
	return u.host(t, envA), u.host(t, envB)
}

func (u underlay) host(t testing.TB, env string) hcatest.Host {
	t.Helper()
	dev := open(t, env)
	port, err := dev.QueryPort(1)
	if err != nil {
		t.Fatal(err)
	}
	n := netdev{t: t, name: netdevOf(t, os.Getenv(env))}
	return hcatest.Host{Dev: dev, Port: 1, SGIDIndex: u.index(t, port.GIDs), SetLink: n.setUp, AddGID: n.addAddr}
}

func open(t testing.TB, env string) hca.Device {
	t.Helper()
	if os.Getenv(env) == "" {
		t.Fatalf("%s names no device", env)
	}
	dev, err := verbs.Open(os.Getenv(env))
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// index finds the first GID that serves an underlay.
func (u underlay) index(t testing.TB, gids []hca.GIDEntry) int {
	t.Helper()
	for i, g := range gids {
		if !g.GID.IsZero() && g.Type == hca.GIDTypeRoCEv2 && g.GID.Addr().Is4() == u.v4 {
			return i
		}
	}
	t.Fatalf("no GID for %s in %v", u.name, gids)
	return 0
}

// netdevOf names the interface behind a device.
func netdevOf(t testing.TB, device string) string {
	t.Helper()
	text, err := os.ReadFile(path.Join("/sys/class/infiniband", device, "ports/1/gid_attrs/ndevs/0"))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// netdev is the interface behind a device.
type netdev struct {
	t    testing.TB
	name string
}

func (n netdev) link() netlink.Link {
	n.t.Helper()
	l, err := netlink.LinkByName(n.name)
	if err != nil {
		n.t.Fatal(err)
	}
	return l
}

// setUp brings the interface up or down.
func (n netdev) setUp(up bool) {
	n.t.Helper()
	if up {
		n.must(netlink.LinkSetUp(n.link()))
	} else {
		n.must(netlink.LinkSetDown(n.link()))
	}
}

// addAddr adds an address for the rest of the test.
func (n netdev) addAddr() {
	n.t.Helper()
	addr, err := netlink.ParseAddr("198.51.100.9/32")
	n.must(err)
	n.must(netlink.AddrAdd(n.link(), addr))
	n.t.Cleanup(func() { n.must(netlink.AddrDel(n.link(), addr)) })
}

func (n netdev) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}
